"""Reading the runners' log files: the end of them, what came after a cursor, by level and by word, in bounded memory.

A line that names no level, such as a line of a traceback, has the level of the line above it. Files are read in blocks
from the place asked for; nothing reads a whole log, and nothing writes one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from api.errors import InvalidRequest

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_SCAN_BYTES = 32 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024
_MAX_UNLEVELLED = 400
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_ALIASES = {"WARN": "WARNING", "FATAL": "CRITICAL"}
_CURSOR = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


@dataclass(frozen=True)
class Entry:
    """One line; ``level`` is its own or the last one named above it, None where none was found."""

    attempt: int
    level: str | None
    text: str


@dataclass(frozen=True)
class LogPage:
    """Entries, whether more match, and the cursor behind the last byte that was considered."""

    entries: list[Entry]
    has_more: bool
    next: str


@dataclass(frozen=True)
class Wanted:
    """What to keep: at least this level, and this text anywhere (letter case ignored)."""

    level: str | None = None
    search: str | None = None

    def keeps(self, entry: Entry) -> bool:
        """Whether ``entry`` is asked for. Output without a level passes every level: a crash often has none."""
        if self.level and entry.level and LEVELS.index(entry.level) < LEVELS.index(self.level):
            return False
        return self.search is None or self.search.lower() in entry.text.lower()


def tail(files: list[tuple[int, Path]], wanted: Wanted, limit: int) -> LogPage:
    """The last ``limit`` matching lines, oldest first, over attempts ``files`` in rising order."""
    found: list[Entry] = []
    budget = MAX_SCAN_BYTES
    for attempt, path in reversed(files):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            lines = _lines_backwards(file, size, min(size, budget))
            for entry in _entries_backwards(lines, attempt):
                if wanted.keeps(entry):
                    found.append(entry)
                    if len(found) > limit:
                        return LogPage(found[limit - 1 :: -1], has_more=True, next=end_cursor(files))
        budget -= min(size, budget)
        if budget == 0:
            return LogPage(found[::-1], has_more=True, next=end_cursor(files))
    return LogPage(found[::-1], has_more=False, next=end_cursor(files))


def follow(files: list[tuple[int, Path]], wanted: Wanted, limit: int, after: str) -> LogPage:
    """Up to ``limit`` matching lines behind the cursor ``after``."""
    attempt, offset = parse_cursor(after)
    found: list[Entry] = []
    position = (attempt, offset)
    budget = MAX_SCAN_BYTES
    for number, path in files:
        if number < attempt:
            continue
        start = offset if number == attempt else 0
        with path.open("rb") as file:
            for entry, end in _entries_forwards(file, start, number):
                position = (number, end)
                budget -= end - start
                start = end
                if wanted.keeps(entry):
                    found.append(entry)
                if len(found) == limit or budget <= 0:
                    return LogPage(found, has_more=True, next=_cursor(position))
    return LogPage(found, has_more=False, next=_cursor(position))


def end_cursor(files: list[tuple[int, Path]]) -> str:
    """The cursor behind everything that is complete now: after the last newline of the last file."""
    if not files:
        return _cursor((0, 0))
    attempt, path = files[-1]
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _MAX_LINE_BYTES)
        file.seek(start)
        newline = file.read(size - start).rfind(b"\n")
    return _cursor((attempt, start + newline + 1 if newline >= 0 else start))


def parse_cursor(after: str) -> tuple[int, int]:
    """Attempt and byte offset of a cursor. Raises :class:`InvalidRequest`."""
    match = _CURSOR.fullmatch(after)
    if match is None:
        raise InvalidRequest("this is not a cursor of a log", param="after", hint="use the `next` of an earlier answer")
    return int(match[1]), int(match[2])


def _cursor(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


def _level(line: str) -> str | None:
    match = _LEVEL.search(line[:120])
    return _ALIASES.get(match[1], match[1]) if match else None


def _lines_backwards(file: BinaryIO, size: int, most: int) -> Iterator[str]:
    """Lines from the end of the file, reading at most ``most`` bytes; the beginning of an overlong line is dropped."""
    position, stop, rest = size, size - most, b""
    ends_file = True
    while position > stop:
        step = min(_BLOCK_BYTES, position - stop)
        position -= step
        file.seek(position)
        first, *lines = (file.read(step) + rest).split(b"\n")
        for line in reversed(lines):
            if line or not ends_file:
                yield _text(line)
            ends_file = False
        rest = first[-_MAX_LINE_BYTES:]
    if rest and position == 0:
        yield _text(rest)


def _entries_backwards(lines: Iterator[str], attempt: int) -> Iterator[Entry]:
    waiting: list[str] = []
    for line in lines:
        waiting.append(line)
        level = _level(line)
        if level is not None or len(waiting) >= _MAX_UNLEVELLED:
            yield from (Entry(attempt, level, text) for text in waiting)
            waiting = []
    yield from (Entry(attempt, None, text) for text in waiting)


def _entries_forwards(file: BinaryIO, start: int, attempt: int) -> Iterator[tuple[Entry, int]]:
    """Lines from ``start``, each with the offset behind it; a line still being written is left for later."""
    file.seek(start)
    position = start
    level: str | None = None
    while raw := file.readline(_MAX_LINE_BYTES):
        if not raw.endswith(b"\n") and len(raw) < _MAX_LINE_BYTES:
            return
        position += len(raw)
        line = _text(raw.rstrip(b"\n"))
        level = _level(line) or level
        yield Entry(attempt, level, line), position


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\x00", "\ufffd").rstrip("\r")
