"""The Celery configuration, in one place: how doorbells travel over Redis or Valkey.

The message is a doorbell and nothing else, so every feature that would make it more is off: no results, no late
acknowledgement, no prefetch, no remote control, no pickles. It knows no task and no setting but the broker's address.
"""

from functools import lru_cache

from celery import Celery

QUEUE = "driftline"
RING_TASK = "driftline.ring"
KEY_PREFIX = "driftline:"

#: Seconds after which Redis emulation would deliver an unacknowledged message again. Messages are acknowledged on
#: delivery, so no run's length ever meets it. The shortest value among all apps of a broker wins, hence one constant.
VISIBILITY_TIMEOUT_S = 3600

#: Seconds Celery leaves the supervisor on a cold shutdown (QUIT) before it kills the pool; longer than the drain.
SOFT_SHUTDOWN_S = 150.0

_PUBLISH_TIMEOUT_S = 2.0


def make_app(broker_url: str) -> Celery:
    """Return a Celery app for ``broker_url`` with Driftline's configuration; connects to nothing."""
    app = Celery("driftline", broker=broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        task_default_queue=QUEUE,
        worker_concurrency=1,
        worker_pool="prefork",
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_soft_shutdown_timeout=SOFT_SHUTDOWN_S,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        visibility_timeout=VISIBILITY_TIMEOUT_S,
        broker_transport_options=_transport_options(),
        result_backend_transport_options={"visibility_timeout": VISIBILITY_TIMEOUT_S},
    )
    return app


@lru_cache(maxsize=4)
def publisher(broker_url: str) -> Celery:
    """The app that rings at ``broker_url``: the same configuration, but it gives up within seconds."""
    app = make_app(broker_url)
    app.conf.broker_transport_options = _transport_options() | {
        "socket_connect_timeout": _PUBLISH_TIMEOUT_S,
        "socket_timeout": _PUBLISH_TIMEOUT_S,
        "connect_retries_timeout": _PUBLISH_TIMEOUT_S,
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0,
    }
    return app


def _transport_options() -> dict[str, object]:
    return {
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "global_keyprefix": KEY_PREFIX,
        "socket_keepalive": True,
    }
