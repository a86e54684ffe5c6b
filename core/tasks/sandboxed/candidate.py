"""Runs one completion's program, as a script or to answer calls; the only process that ever holds its code.

It sees the program and the inputs. Expected outputs never come here, so nothing that the program does to this process, to
its own frames or to the socket can show or change what it is compared with. How it is called: ``candidate.py probe``,
``script CPU_S MEMORY_MB FILE_MB PROGRAM_FD`` (standard input and output are the program's), or
``serve CPU_S MEMORY_MB FILE_MB PROGRAM_FD SOCKET_FD``.
"""

from __future__ import annotations

import builtins
import json
import os
import resource
import sys
import types

from core.tasks.sandboxed.wire import TYPE_CHECKING, Link, WireError, decode, encode, end_with_parent

if TYPE_CHECKING:
    from typing import Any

_MAX_TEXT = 300


def main(arguments: list[str]) -> int:
    """Do what the arguments ask."""
    end_with_parent()
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment] # the module site, left out by -S, defines them
    if arguments[0] == "probe":
        _limit(5, 512, 1)
        sys.stdout.write("ready\n")
        return 0
    mode, (cpu_s, memory_mb, file_mb, program_fd) = arguments[0], map(int, arguments[1:5])
    with os.fdopen(program_fd, "rb") as file:
        prelude, text = json.load(file)
    _limit(cpu_s, memory_mb, file_mb)
    if mode == "script":
        _script(text)
        return 0
    _serve(prelude, text, Link(int(arguments[5])))
    return 0


def _limit(cpu_s: int, memory_mb: int, file_mb: int) -> None:
    """Hard limits, which cannot be raised again; at the CPU limit the kernel kills, whatever handlers are installed."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_mb << 20, file_mb << 20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def _script(text: str) -> None:
    sys.argv = ["program.py"]
    module = _module("__main__")
    exec(compile(text, "program.py", "exec"), module.__dict__)  # noqa: S102 - this is what the sandbox is for


def _serve(prelude: str, text: str, link: Link) -> None:
    module = _module("program")
    kept: list[Any] = []

    def keep(value: Any) -> list[Any]:
        kept.append(value)
        return ["object", len(kept) - 1, type(value).__name__[:80]]

    def stand_in(data: list[Any]) -> Any:
        match data[0]:
            case "object":
                return kept[data[1]]
            case "builtin":
                return getattr(builtins, data[1])
        return _callback(link, data[1], keep, stand_in)

    try:
        exec(compile(prelude, "prelude.py", "exec"), module.__dict__)  # noqa: S102
        exec(compile(text, "program.py", "exec"), module.__dict__)  # noqa: S102
    except BaseException as problem:  # noqa: BLE001 - exits too: nothing that the program raises ends the driver
        link.send(["raised", *_told(problem)])
        return
    link.send(["ready"])
    while True:
        try:
            request = link.receive()
        except EOFError:
            return
        try:
            answer = ["value", encode(_done(request, module, stand_in), keep)]
            link.send(answer)
        except WireError as problem:
            link.send(["raised", "WireError", str(problem)])
        except BaseException as problem:  # noqa: BLE001
            link.send(["raised", *_told(problem)])


def _done(request: list[Any], module: types.ModuleType, stand_in: Any) -> Any:
    match request:
        case ["name", str(name)]:
            return getattr(module, name)
        case ["truth", target]:
            return bool(decode(target, stand_in))
        case ["get", target, str(name)]:
            return getattr(decode(target, stand_in), name)
        case ["set", target, str(name), value]:
            return setattr(decode(target, stand_in), name, decode(value, stand_in))
        case ["call", target, list(values), list(names)]:
            keywords = {name: decode(value, stand_in) for name, value in names}
            return decode(target, stand_in)(*(decode(value, stand_in) for value in values), **keywords)
        case ["method", str(name), list(values)]:
            # LeetCode's form: a method of a class Solution, or a plain function.
            holder = module.Solution() if hasattr(module, "Solution") else module
            return getattr(holder, name)(*(decode(value, stand_in) for value in values))
    raise WireError("a request of no known form")


def _callback(link: Link, number: int, keep: Any, stand_in: Any) -> Any:
    """A function of the tests, called through the judge: its code stays there."""

    def call(*values: Any) -> Any:
        link.send(["callback", number, [encode(value, keep) for value in values]])
        match link.receive():
            case ["value", value]:
                return decode(value, stand_in)
        raise RuntimeError("the function that was passed in failed")

    return call


def _told(problem: BaseException) -> tuple[str, str]:
    """(name of the built-in exception that it is, its text)."""
    kinds = (kind.__name__ for kind in type(problem).__mro__ if kind.__module__ == "builtins")
    try:
        text = str(problem)[:_MAX_TEXT]
    except BaseException:  # noqa: BLE001 - the text is the program's too
        text = ""
    return next(kinds, "Exception"), text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
