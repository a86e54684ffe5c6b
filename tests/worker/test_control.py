"""The control pipe: words, their precedence, and the end of a runner whose supervisor is gone."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.processes import gone
from tests.worker.waiting import wait_until
from worker.control import PipeControl

RANK = {"cancel": 0, "pause": 1, "drain": 2}


@given(st.lists(st.sampled_from(sorted(RANK))))
def test_the_most_final_request_wins_whatever_the_order(words):
    control = PipeControl()
    for word in words:
        control.ask(word)
    assert control.requested == min(words, key=RANK.__getitem__, default=None)


def test_words_arrive_and_unknown_ones_are_ignored():
    read_end, write_end = os.pipe()
    control, ended = PipeControl(), threading.Event()
    control.listen(read_end, ended.set)

    os.write(write_end, b"explode\n\n\xff\xfe\ndrain\n")
    wait_until(lambda: control.requested == "drain")
    os.write(write_end, b"cancel\n")
    wait_until(lambda: control.requested == "cancel")
    assert not ended.is_set()
    os.close(write_end)

    assert ended.wait(10)
    os.close(read_end)


# A runner that never lets go of the interpreter's lock: only the guard can end it.
BUSY = """
import subprocess, sys
from worker.control import start_guard
start_guard(0)
child = subprocess.Popen([sys.executable, "-S", "-c", "import threading; threading.Event().wait()"])
print(child.pid, flush=True)
{rest}
"""


def start(rest):
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY.format(rest=rest)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    return process, int(process.stdout.readline())


@pytest.mark.faults
def test_the_guard_kills_the_group_when_the_pipe_closes_even_if_the_runner_cannot_listen():
    process, child = start("sum(iter(int, 1))")  # never returns and never reads its pipe

    process.stdin.close()

    assert process.wait(30) == -signal.SIGKILL
    wait_until(lambda: gone(child), what="the runner's child to end")
    process.stdout.close()


@pytest.mark.faults
def test_the_guard_kills_what_is_left_when_the_runner_is_killed():
    process, child = start("import threading; threading.Event().wait()")

    process.kill()

    wait_until(lambda: gone(child), what="the runner's child to end")
    process.wait(30)
    process.stdin.close()
    process.stdout.close()
