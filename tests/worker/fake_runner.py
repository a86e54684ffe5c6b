"""A runner without a model: the real entry point with a job that does what the run's name says, and keeps a journal."""

import os
import sys
import threading

from core.jobs import Outcome
from worker.runner import leave, main


def job(context):
    behaviour = context.recipe.name.split()[0]
    write(context, f"{context.attempt} started {os.getpid()}")
    outcome = globals()[behaviour](context)
    write(context, f"{context.attempt} {outcome.state}")
    return outcome


def write(context, line):
    """Append to the run's journal; O_APPEND makes lines of several processes whole."""
    path = context.settings.home / f"journal-{context.run_id}"
    with path.open("a") as journal:
        journal.write(line + "\n")


def finish(_context):
    return Outcome("succeeded", "all steps done")


def obey(context):
    pause = threading.Event()
    while (request := context.control.requested) is None:
        pause.wait(0.02)
    write(context, f"{context.attempt} asked {request}")
    match request:
        case "cancel":
            return Outcome("cancelled", "cancelled by request")
        case "pause":
            return Outcome("paused", "paused by request")
        case _:
            return Outcome("interrupted", "drained")


def hold_first(context):
    """Hang for ever in the first attempt, finish in the next."""
    if context.attempt == 1:
        threading.Event().wait()
    return finish(context)


def obey_first(context):
    return obey(context) if context.attempt == 1 else finish(context)


if __name__ == "__main__":
    leave(main(sys.argv[1:], job))
