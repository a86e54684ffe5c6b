"""The Celery configuration: what must be off is off, and one constant decides the visibility timeout."""

import subprocess
import sys

import pytest

from worker.broker import KEY_PREFIX, QUEUE, VISIBILITY_TIMEOUT_S, make_app, publisher

URL = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("app", [make_app(URL), publisher(URL)], ids=["worker", "publisher"])
def test_the_visibility_timeout_is_one_constant_in_all_three_places(app):
    assert app.conf.broker_transport_options["visibility_timeout"] == VISIBILITY_TIMEOUT_S
    assert app.conf.result_backend_transport_options["visibility_timeout"] == VISIBILITY_TIMEOUT_S
    assert app.conf.visibility_timeout == VISIBILITY_TIMEOUT_S


def test_a_doorbell_is_no_more_than_a_doorbell():
    conf = make_app(URL).conf

    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.result_backend is None
    assert conf.task_ignore_result
    assert not conf.task_acks_late
    assert conf.worker_disable_prefetch
    assert conf.worker_prefetch_multiplier == 1
    assert conf.worker_concurrency == 1
    assert conf.worker_pool == "prefork"
    assert not conf.worker_enable_remote_control
    assert not conf.worker_send_task_events
    assert conf.task_default_queue == QUEUE
    assert conf.broker_transport_options["global_keyprefix"] == KEY_PREFIX


def test_importing_the_worker_and_its_runner_loads_no_torch():
    modules = (
        "worker.app, worker.tasks, worker.supervisor, worker.lifecycle, worker.sweeper, worker.runner, worker.__main__"
    )
    code = f"import sys, {modules}; print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"
