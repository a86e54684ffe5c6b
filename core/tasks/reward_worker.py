"""The process that runs own reward functions: reads calls as JSON lines, answers each with one JSON line.

Run as ``python -m core.tasks.reward_worker``; only :mod:`core.tasks.reward_pool` starts it. It limits its own memory and CPU
time and leaves the wall clock to its parent, who kills it. A file is run only when it hashes to what the parent says.
"""

import hashlib
import json
import math
import os
import random
import resource
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

_MIB = 1 << 20


def main() -> int:
    """Serve calls until the input closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = _private_output()
    modules: dict[str, ModuleType] = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply = _load(modules, request) if "load" in request else _call(modules, request)
        output.write(json.dumps(reply).encode() + b"\n")
        output.flush()
    return 0


def _private_output() -> BinaryIO:
    """Keep the pipe for replies to ourselves, so that a print in the file cannot break the protocol."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(descriptor, "wb")


def _load(modules: dict[str, ModuleType], request: dict[str, Any]) -> dict[str, Any]:
    path = Path(request["load"])
    try:
        source = path.read_bytes()
        if hashlib.sha256(source).hexdigest() != request["sha256"]:
            return {"failed": f"{path.name} was changed while the run was at work"}
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules[f"driftline_reward_{path.stem}"] = module
        exec(compile(source, path.name, "exec"), module.__dict__)  # noqa: S102 - the operator's own file, by its hash
        if not callable(getattr(module, request["function"], None)):
            return {"failed": f"{path.name} defines no function {request['function']}"}
    except BaseException as problem:  # noqa: BLE001 - SystemExit of a file too is a file that cannot be loaded
        return {"failed": f"{path.name}: {type(problem).__name__}: {problem}"[:500]}
    modules[request["sha256"]] = module
    return {"loaded": path.name}


def _call(modules: dict[str, ModuleType], request: dict[str, Any]) -> dict[str, Any]:
    _limit(request["memory_mb"], request["cpu_s"])
    random.seed(request["seed"])
    try:
        function = getattr(modules[request["sha256"]], request["function"])
        given = {name: request[name] for name in ("prompt", "completion", "item")}
        return _reply(function(**given, **request["arguments"]))
    except MemoryError:
        return {"error": f"it needed more than {request['memory_mb']} MiB"}
    except RecursionError:
        return {"error": "it recursed too deeply"}
    except Exception as problem:  # noqa: BLE001 - whatever the function raises, the sample has no value
        return {"error": f"{type(problem).__name__}: {problem}"[:300]}


def _reply(value: object) -> dict[str, Any]:
    """A finite number, or None; numpy's scalars are numbers too."""
    if value is None:
        return {"value": None}
    if isinstance(value, str | bytes):
        return {"error": f"it returned a text, {value[:50]!r}, not a number"}
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return {"error": f"it returned a {type(value).__name__}, not a number"}
    return {"value": number} if math.isfinite(number) else {"error": f"it returned {number}"}


def _limit(memory_mb: int, cpu_s: float) -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * _MIB, hard))
    used = resource.getrusage(resource.RUSAGE_SELF)
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + cpu_s) + 1, hard))


if __name__ == "__main__":
    sys.exit(main())
