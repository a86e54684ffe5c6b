"""Runs a data set's tests against a program that lives in another process; the only process that holds expected values.

The tests' own code runs here unchanged but for two things: names of the program are stand-ins that send each call over and
get plain data back, and comparisons are strict (``True`` is not 1, an object of the program equals nothing). It waits for
jobs on a socket and forks for each, so a test leaves nothing behind. Usage: ``judge.py SOCKET_FD``. Each job comes as two
descriptors: a file with the job as JSON, and the socket to the program.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import resource
import socket
import sys
from typing import Any, Literal

from core.tasks.sandboxed.wire import Link, WireError, decode, encode, end_with_parent

_MEMORY = 1 << 30
_MAX_REASON = 300


class EndedError(BaseException):
    """The program's process is gone or sent rubbish; no test can catch this."""


class Remote:
    """Stands for an object of the program: it can be called, asked for attributes, and passed back; it equals itself."""

    __slots__ = ("_data", "_kind", "_program")

    def __init__(self, program: Program, data: list[Any]) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_data", ["object", data[1]])
        object.__setattr__(self, "_kind", str(data[2])[:80])

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        return self._program.call(self._data, values, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask(["get", self._data, name])

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask(["set", self._data, name, self._program.encoded(value)])

    def __bool__(self) -> bool:
        # What a program says of its own object's truth is worth as much as a True or False that it returns.
        return self._program.ask(["truth", self._data]) is True


class Program:
    """The other side of the socket."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._functions: list[Any] = []
        self.calls = 0

    def begin(self) -> None:
        """Wait until the program's top level has run."""
        self._answer()

    def name(self, name: str) -> Any:
        """What the program defines under a name."""
        return self.ask(["name", name])

    def call(self, target: list[Any], values: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an object of the program."""
        self.calls += 1
        names = [[name, self.encoded(value)] for name, value in keywords.items()]
        return self.ask(["call", target, [self.encoded(value) for value in values], names])

    def ask(self, request: list[Any]) -> Any:
        """Send a request and return the value that comes back, or raise what the program raised."""
        try:
            self._link.send(request)
        except EOFError:
            raise EndedError("the program ended") from None
        return self._answer()

    def encoded(self, value: Any) -> Any:
        """An argument as data; objects of the program go back as their number, functions of the tests as a call-back."""
        return encode(value, self._stand_in)

    def _stand_in(self, value: Any) -> list[Any]:
        if type(value) is Remote:
            return list(value._data)
        if isinstance(value, type) and value.__module__ == "builtins":
            return ["builtin", value.__name__]
        if callable(value):
            self._functions.append(value)
            return ["callback", len(self._functions) - 1]
        raise UnjudgeableError(f"the tests pass a {type(value).__name__} to the program, which cannot be sent as data")

    def _object(self, data: list[Any]) -> Remote:
        if data[0] != "object":
            raise WireError("a value that only the tests may send")
        return Remote(self, data)

    def _answer(self) -> Any:
        while True:
            try:
                message = self._link.receive()
                match message:
                    case ["ready"]:
                        return None
                    case ["value", value]:
                        return decode(value, self._object)
                    case ["raised", str(kind), str(text)]:
                        raise _exception(kind, text)
                    case ["callback", int(number), list(values)]:
                        self._call_back(number, values)
                        continue
            except EOFError:
                raise EndedError("the program ended") from None
            except WireError as problem:
                raise EndedError(f"the program answered with {problem}") from None
            raise EndedError("the program answered with no known message")

    def _call_back(self, number: int, values: list[Any]) -> None:
        arguments = [decode(value, self._object) for value in values]
        try:
            result = self._functions[number](*arguments)
        except Exception:  # noqa: BLE001 - the program learns that it failed, not why
            self._link.send(["raised"])
            return
        self._link.send(["value", self.encoded(result)])


class UnjudgeableError(BaseException):
    """The test itself cannot be run this way; that is no fault of the program."""


class RaisedByProgramError(Exception):
    """The program raised something that is no ordinary built-in exception."""


def _exception(kind: str, text: str) -> BaseException:
    """The same built-in exception, marked as the program's; what would end or interrupt us becomes an ordinary one."""
    known = getattr(builtins, kind, None)
    if not (isinstance(known, type) and issubclass(known, Exception)):
        return RaisedByProgramError(f"{kind[:80]}: {text}")
    try:
        problem = known(text)
    except TypeError:
        return RaisedByProgramError(f"{kind[:80]}: {text}")
    problem.__dict__["from_program"] = True
    return problem


def same(found: Any, expected: Any) -> bool:
    """Equality between plain data: as Python's, but ``True`` is not 1, at any depth.

    The other way round a 1 where ``True`` is expected passes, as tests that predate the difference rely on it (MBPP 414).
    """
    if isinstance(found, Remote) or isinstance(expected, Remote):
        return found is expected
    if isinstance(found, bool):
        return found is expected
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        same_kind = isinstance(found, list) == isinstance(expected, list)
        return same_kind and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = {key: (key, value) for key, value in expected.items()}
        return len(found) == len(expected) and all(
            key in keys and same(key, keys[key][0]) and same(value, keys[key][1]) for key, value in found.items()
        )
    if isinstance(found, set | frozenset) and isinstance(expected, set | frozenset):
        return found == expected and all(any(same(one, other) for other in expected if one == other) for one in found)
    return bool(found == expected)


def contains(element: Any, container: Any) -> bool:
    """Membership by :func:`same` where the container lists its elements."""
    if isinstance(container, list | tuple | set | frozenset):
        return any(same(element, one) for one in container)
    return element in container


# Operator -> (function in its place, whether its result is negated).
_STRICT: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("__same__", False), ast.NotEq: ("__same__", True),
    ast.In: ("__contains__", False), ast.NotIn: ("__contains__", True),
}  # fmt: skip


class Strict(ast.NodeTransformer):
    """Rewrites comparisons by equality and membership to the strict ones, and counts assertions as they are reached."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1 or type(node.ops[0]) not in _STRICT:
            return node
        name, negate = _STRICT[type(node.ops[0])]
        sides = [node.left, node.comparators[0]]
        if name == "__same__" and _is_literal(sides[0]) and not _is_literal(sides[1]):
            sides.reverse()  # what is written out is what is expected
        call: ast.expr = ast.Call(ast.Name(name, ast.Load()), sides, [])
        return ast.copy_location(ast.UnaryOp(ast.Not(), call) if negate else call, node)

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        self.generic_visit(node)
        reached = ast.Expr(ast.Call(ast.Name("__reached__", ast.Load()), [], []))
        return [ast.copy_location(reached, node), node]


def _is_literal(node: ast.expr) -> bool:
    return not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node))


class Tests:
    """One job's namespace and the count of assertions reached."""

    def __init__(self, program: Program) -> None:
        self.reached = 0
        self._program = program
        self.names: dict[str, Any] = {
            "__name__": "tests", "__same__": same, "__contains__": contains, "__reached__": self._count,
        }  # fmt: skip

    def run(self, text: str, *, strict: bool = True) -> None:
        """Execute test code in the namespace."""
        tree = ast.parse(text)
        if strict:
            tree = ast.fix_missing_locations(Strict().visit(tree))
        exec(compile(tree, "tests.py", "exec"), self.names)  # noqa: S102 - the data set's tests, in the sandbox

    def bind(self, names: list[str]) -> None:
        """Take names that the tests leave open from the standard library, else from the program."""
        for name in names:
            if name in sys.stdlib_module_names:
                self.names[name] = importlib.import_module(name)
            else:
                self.names[name] = self._program.name(name)

    def _count(self) -> None:
        self.reached += 1


def open_names(parts: list[str]) -> list[str]:
    """Names that the test code uses and does not define, in order of appearance.

    Built-in names are the judge's own, else a program could put its ``set`` or ``sorted`` in the place of ours. Only where
    tests name nothing else at all, the first name they call is the program's.
    """
    used: dict[str, None] = {}
    called: list[str] = []
    defined: set[str] = set()
    for part in parts:
        for node in ast.walk(ast.parse(part)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    used[name] = None
                case ast.Name(id=name):
                    defined.add(name)
                case ast.arg(arg=name):
                    defined.add(name)
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    defined |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
                case ast.ExceptHandler(name=str(name)):
                    defined.add(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    defined.add(name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.append(node.func.id)
    found = [name for name in used if name not in defined and not hasattr(builtins, name)]
    return found or [name for name in called[:1] if name not in defined]


def _check(job: dict[str, Any]) -> None:
    """Raise :class:`UnjudgeableError` where the tests are no Python or lack what is called; the program has no part in this."""
    parts = [job["prompt"], job["test"]] if job["kind"] == "humaneval" else [job["setup"], *job["test_list"]]
    try:
        trees = [ast.parse(part) for part in parts]
    except (SyntaxError, ValueError) as problem:
        raise UnjudgeableError(f"the tests are no Python: {problem}") from None
    defined = {node.name for node in trees[-1].body if isinstance(node, ast.FunctionDef)}
    if job["kind"] == "humaneval" and "check" not in defined:
        raise UnjudgeableError("the tests define no function check")


def judge(job: dict[str, Any], program: Program) -> dict[str, Any]:
    """Run one job's tests and say what happened."""
    tests = Tests(program)
    where = "before the first test"
    try:
        _check(job)
        program.begin()
        if job["kind"] == "humaneval":
            tests.run(job["prompt"], strict=False)
            tests.names[job["entry_point"]] = function = program.name(job["entry_point"])
            tests.run(job["test"])
            where = "in the tests"
            tests.names["check"](function)
        else:
            tests.bind(open_names([job["setup"], *job["test_list"]]))
            tests.run(job["setup"])
            for number, line in enumerate(job["test_list"], start=1):
                where = f"in test {number} of {len(job['test_list'])}"
                tests.run(line)
    except AssertionError as problem:
        raised = problem.__dict__.get("from_program")
        what = f"the program raised AssertionError: {problem}" if raised else "an assertion failed"
        return {"result": "failed", "reason": f"{what} {where}"[:_MAX_REASON]}
    except EndedError as problem:
        return {"result": "ended", "reason": f"{problem} {where}"[:_MAX_REASON]}
    except UnjudgeableError as problem:
        return {"result": "unjudgeable", "reason": f"{problem} {where}"[:_MAX_REASON]}
    except BaseException as problem:  # noqa: BLE001 - an exit or error of any kind is a test that did not pass
        whose = "the program raised " if getattr(problem, "from_program", False) else ""
        return {"result": "failed", "reason": f"{whose}{type(problem).__name__}: {problem} {where}"[:_MAX_REASON]}
    # Tests may loop over what the program returned, so a program can avoid every assertion; it must not gain by that.
    unreached = "failed" if program.calls else "empty"
    reason = f"{tests.reached} assertions held" if tests.reached else "no assertion was reached"
    return {"result": "passed" if tests.reached else unreached, "reason": reason}


def _run(job_fd: int, program_fd: int, server: socket.socket) -> Literal[0]:
    """The forked child: one job, one line with the result."""
    with os.fdopen(job_fd, encoding="utf-8", errors="surrogatepass") as file:
        job = json.load(file)
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    result = judge(job, Program(Link(program_fd)))
    server.sendall(json.dumps(result).encode() + b"\n")
    return 0


def main(server_fd: int) -> int:
    """Serve jobs until the other side closes; one line is sent for each job, whatever happens to its process."""
    end_with_parent()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for good: tests may print
    server = socket.socket(fileno=server_fd)
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(server, 1, 2)
        if not message:
            return 0
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _run(descriptors[0], descriptors[1], server)
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)
        _pid, status = os.waitpid(child, 0)
        if status != 0:
            code = os.waitstatus_to_exitcode(status)
            server.sendall(
                json.dumps({"result": "died", "reason": f"the tests' process ended with {code}"}).encode() + b"\n"
            )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
