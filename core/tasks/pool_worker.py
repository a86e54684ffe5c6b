"""The grading process behind the pool: reads jobs as JSON lines, answers each with one JSON line.

Run as ``python -m core.tasks.pool_worker``; only :mod:`core.tasks.pool` starts it. It limits its own memory and CPU time,
ends when its input closes, and leaves the wall clock to its parent, who kills it. No pickle,
and no code from the answers runs in this process.
"""

import json
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from core.tasks.items import Item
from core.tasks.verifiers import Outcome, grade, version_of, warm_up

_MIB = 1024 * 1024


def main() -> int:
    """Serve jobs until the input closes."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # the parent decides; a Ctrl-C meant for it must not lose an answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = _private_output()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        reply = _load(request) if "load" in request else _grade(request)
        output.write(json.dumps(reply).encode() + b"\n")
        output.flush()
        if reply.get("out_of_memory"):
            return 0  # a heap that was once full is not trusted with the next answer


def _read(requests: "queue.SimpleQueue[bytes]") -> None:
    """Pass requests on; an end of input means that the parent is gone, even while an answer is being graded."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _private_output() -> BinaryIO:
    """Keep the pipe for replies to ourselves, so that a library's print cannot break the protocol."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(descriptor, "wb")


def _load(request: dict[str, Any]) -> dict[str, Any]:
    """Import a grader; the limits apply from here on, since imports may take more than an answer may."""
    try:
        warm_up(request["load"])
        return {"loaded": request["load"], "version": version_of(request["load"])}
    except Exception as problem:  # noqa: BLE001 - whatever it is, the parent reports it as infra_error
        return {"failed": f"{type(problem).__name__}: {problem}"}


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
    return {
        "verdict": verdict.value,
        "reason": reason,
        "extracted": extracted,
        "details": dict(details),
        "ms": (time.perf_counter() - started) * 1000,
        "out_of_memory": out_of_memory,
    }


def _limit(memory_mb: int, cpu_s: float) -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * _MIB, hard))
    used = resource.getrusage(resource.RUSAGE_SELF)
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + cpu_s) + 1, hard))


if __name__ == "__main__":
    sys.exit(main())
