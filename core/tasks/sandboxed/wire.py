"""Plain data over a socket between the two sandboxed processes: one JSON array a line, values tagged by their kind.

A value arrives as inert data of a known standard type or as a number that stands for an object that stayed at home. So an
object that claims to equal everything loses its claims on the way, and nothing that is received can run.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import select
import sys
import time

TYPE_CHECKING = False  # the module typing takes as long to import as everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_LINE = 32 << 20
MAX_ELEMENTS = 1_000_000
_SMALL = 1 << 53

_EMPTY: list[Any] = []
_ONE_OF_EACH: tuple[Any, ...] = (
    iter(_EMPTY), iter(()), iter({}), iter({}.values()), iter({}.items()), iter(set()), iter(range(0)), iter(""),
    iter(range(1 << 70)), reversed(_EMPTY), reversed({}), map(str, _EMPTY), filter(None, _EMPTY), zip(),
    enumerate(_EMPTY), (element for element in _EMPTY),
)  # fmt: skip
_ITERATORS: dict[type, str] = dict.fromkeys(map(type, _ONE_OF_EACH), "iterator")
# Kinds that are sent as their elements. Subclasses of the first four are sent as these.
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_SEQUENCES: dict[type, str] = {
    collections.deque: "deque", type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items",
    **_ITERATORS,
}  # fmt: skip
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque, "iterator": iter,
    "keys": lambda elements: dict.fromkeys(elements).keys(),
    "values": lambda elements: dict(enumerate(elements)).values(),
    "items": lambda elements: dict(elements).items(),
}  # fmt: skip
# Kinds that travel as text: (module, class), imported only where one turns up.
_BY_TEXT = {
    "decimal": ("decimal", "Decimal"), "fraction": ("fractions", "Fraction"), "date": ("datetime", "date"),
    "datetime": ("datetime", "datetime"), "time": ("datetime", "time"),
}  # fmt: skip


def end_with_parent() -> None:
    """Without bubblewrap, which does it itself: have the kernel end this process when the one that started it ends."""
    if "DRIFTLINE_END_WITH_PARENT" in os.environ:
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)


class WireError(Exception):
    """What came is no message of ours, or what should go is too large for one."""


class Link:
    """Lines in both directions over a connected socket; bounded, and at the end of the other side ``EOFError``.

    ``deadline`` (of ``time.monotonic``) counts as the end of the other side: it is for all messages together.
    """

    def __init__(self, descriptor: int, deadline: float | None = None) -> None:
        self._descriptor = descriptor
        self._deadline = deadline
        self._buffer = bytearray()

    def send(self, message: list[Any]) -> None:
        """Send one message."""
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MAX_LINE:
            raise WireError(f"more than {MAX_LINE >> 20} MiB of data")
        view = memoryview(line)
        try:
            while view:
                self._wait(select.POLLOUT)
                view = view[os.write(self._descriptor, view[: 1 << 16]) :]
        except OSError:
            raise EOFError from None

    def receive(self) -> list[Any]:
        """Return the next message; raises ``EOFError`` or :class:`WireError`."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE:
                raise WireError(f"more than {MAX_LINE >> 20} MiB of data")
            try:
                self._wait(select.POLLIN)
                chunk = os.read(self._descriptor, 1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise WireError("a message that is not JSON") from None
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise WireError("a message of no known form")
        return message

    def _wait(self, event: int) -> None:
        if self._deadline is None:
            return
        poller = select.poll()
        poller.register(self._descriptor, event)
        if not poller.poll(max(0, int((self._deadline - time.monotonic()) * 1000))):
            raise EOFError


def encode(value: Any, keep: Callable[[Any], list[Any]]) -> Any:
    """Return ``value`` as JSON values; what is no plain data is left to ``keep``, which returns its stand-in.

    Subclasses of plain types are sent as that plain type, read by that type's own methods.
    """
    if value is None or value is True or value is False:
        return value
    match value:
        case int():
            plain = int.__index__(value)
            return plain if -_SMALL < plain < _SMALL else ["int", hex(plain)]
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
    return _encode_container(value, keep) or _encode_rare(value) or keep(value)


def _encode_container(value: Any, keep: Callable[[Any], list[Any]]) -> list[Any] | None:
    if isinstance(value, dict):
        keys = _limited(dict.__iter__(value))
        return ["dict", [[encode(key, keep), encode(dict.__getitem__(value, key), keep)] for key in keys]]
    plain = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if plain is not None:
        return [_CONTAINERS[plain], [encode(element, keep) for element in _limited(plain.__iter__(value))]]  # type: ignore[attr-defined]
    if type(value) in _SEQUENCES:
        return [_SEQUENCES[type(value)], [encode(element, keep) for element in _limited(value)]]
    return None


def _limited(elements: Iterable[Any]) -> Iterable[Any]:
    for count, element in enumerate(elements):
        if count >= MAX_ELEMENTS:
            raise WireError(f"more than {MAX_ELEMENTS} elements")
        yield element


def _encode_rare(value: Any) -> list[Any] | None:
    if isinstance(value, bytes | bytearray):
        return ["bytes", bytes(value).hex(), isinstance(value, bytearray)]
    if type(value) is complex:
        return ["complex", value.real, value.imag]
    if type(value) is range:
        return ["range", *(hex(part) for part in (value.start, value.stop, value.step))]
    for name, (module, kind) in _BY_TEXT.items():
        if module in sys.modules and type(value) is getattr(sys.modules[module], kind):
            return [name, value.isoformat() if hasattr(value, "isoformat") else str(value)]
    return None


def decode(data: Any, stand_in: Callable[[list[Any]], Any]) -> Any:
    """The value that :func:`encode` wrote; raises :class:`WireError` for anything else. ``stand_in`` reads stand-ins."""
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise WireError("a value of no known form")
    if data[0] in {"object", "callback", "builtin"}:
        return stand_in(data)
    try:
        return _decode_tagged(data[0], data, stand_in)
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError):
        raise WireError("a value of no known form") from None


def _decode_tagged(name: str, data: list[Any], stand_in: Callable[[list[Any]], Any]) -> Any:
    if name in _MAKERS:
        return _MAKERS[name]([decode(element, stand_in) for element in data[1]])
    if name in _BY_TEXT:
        module, kind_name = _BY_TEXT[name]
        kind = getattr(importlib.import_module(module), kind_name)
        return kind.fromisoformat(data[1]) if hasattr(kind, "fromisoformat") else kind(data[1])
    if name == "dict":
        return {decode(key, stand_in): decode(value, stand_in) for key, value in data[1]}
    return _decode_rare(name, data)


def _decode_rare(name: str, data: list[Any]) -> Any:
    match name:
        case "int":
            return int(data[1], 16)
        case "range":
            return range(*(int(part, 16) for part in data[1:4]))
        case "complex":
            return complex(data[1], data[2])
        case "bytes":
            content = bytes.fromhex(data[1])
            return bytearray(content) if data[2] else content
    raise WireError(f"a value of the unknown kind {name[:40]!r}")
