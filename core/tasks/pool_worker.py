"""The grading processes behind the pool: a nursery that has imported the graders, and the worker that it forks.

Run as ``python -m core.tasks.pool_worker FD``; only :mod:`core.tasks.pool` starts it. The nursery loads graders, forks one
worker at a time, kills it and tells how it ended, so that a worker lost to a hostile answer is replaced in milliseconds
instead of the seconds that imports take; it never sees an answer itself. The worker reads jobs as JSON lines, answers each
with one, and limits its own memory and CPU time; the wall clock is the pool's. Both end when the pool does. No pickle, and
no code from the answers runs in these processes.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from core.tasks.items import Item
from core.tasks.verifiers import Outcome, grade, version_of, warm_up

_MIB = 1024 * 1024
_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> int:
    """Serve the pool's requests (load, spawn, reap) until it closes the socket."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # the pool decides; a Ctrl-C meant for it must not lose an answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pool = socket.socket(fileno=descriptor)
    worker = 0
    for line in pool.makefile("rb"):
        request = json.loads(line)
        match request:
            case {"load": str(verifier)}:
                _send(pool, _load(verifier))
            case {"spawn": True}:
                ours, theirs = socket.socketpair()
                with ours, theirs:
                    worker = os.fork()
                    if worker == 0:
                        ours.close()
                        pool.close()
                        os._exit(_work(theirs))
                    socket.send_fds(pool, [json.dumps({"pid": worker}).encode() + b"\n"], [ours.fileno()])
            case {"reap": True}:
                os.kill(worker, signal.SIGKILL)  # not yet waited for, so the number is still its own
                _pid, status = os.waitpid(worker, 0)
                _send(pool, {"returncode": os.waitstatus_to_exitcode(status)})
    return 0


def _load(verifier: str) -> dict[str, Any]:
    """Import a grader; limits apply to workers only, since imports may take more than an answer may."""
    try:
        warm_up(verifier)
        loaded = {"loaded": verifier, "version": version_of(verifier)}
    except Exception as problem:  # noqa: BLE001 - whatever it is, the pool reports it as infra_error
        return {"failed": f"{type(problem).__name__}: {problem}"}
    gc.collect()
    gc.freeze()  # workers share these objects and never copy them for the sake of a collection
    return loaded


def _work(jobs: socket.socket) -> int:
    """Grade until the pool closes the socket; the kernel ends this process with the nursery, whatever it is computing."""
    nursery = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:
        return 1
    for line in jobs.makefile("rb"):
        reply = _grade(json.loads(line))
        _send(jobs, reply)
        if reply["out_of_memory"]:
            break  # a heap that was once full is not trusted with the next answer
    return 0


def _send(receiver: socket.socket, reply: Mapping[str, Any]) -> None:
    receiver.sendall(json.dumps(reply).encode() + b"\n")


def _grade(request: dict[str, Any]) -> dict[str, Any]:
    _limit(request["memory_mb"], request["cpu_s"])
    started = time.perf_counter()
    out_of_memory = False
    details: Mapping[str, float] = {}
    try:
        judgement = grade(request["verifier"], Item(**request["item"]), request["text"])
        verdict, reason, extracted = judgement.verdict, judgement.reason, judgement.extracted
        details = judgement.details
    except MemoryError:
        out_of_memory = True
        verdict, reason, extracted = Outcome.ERROR, f"grading needed more than {request['memory_mb']} MiB", None
    except RecursionError:
        verdict, reason, extracted = Outcome.ERROR, "the answer is nested too deeply to grade", None
    except Exception as problem:  # noqa: BLE001 - any failure on model text is a verdict with its reason
        verdict, reason, extracted = Outcome.ERROR, f"{type(problem).__name__}: {problem}"[:300], None
    signal.setitimer(signal.ITIMER_PROF, 0)  # reading the next answer is not this one's time
    return {
        "verdict": verdict.value,
        "reason": reason,
        "extracted": extracted,
        "details": dict(details),
        "ms": (time.perf_counter() - started) * 1000,
        "out_of_memory": out_of_memory,
    }


def _limit(memory_mb: int, cpu_s: float) -> None:
    """Bound what one answer may take; at the end of its CPU time the kernel ends this process with SIGPROF.

    The timer is used because it counts fractions of a second and starts anew, which ``RLIMIT_CPU`` does not.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * _MIB, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
