"""Waiting on conditions with a deadline, for tests that watch other processes."""

import threading
import time


def wait_until(predicate, *, within=30.0, every=0.05, what="the condition"):
    """Return the first true value of ``predicate()``; fail after ``within`` seconds."""
    pause = threading.Event()
    deadline = time.monotonic() + within
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within} s")
        pause.wait(every)
