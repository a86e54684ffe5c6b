"""Opening files whose names come from the database, without ever following a link or leaving the service's home.

Each folder on the way is opened relative to the one above it with O_NOFOLLOW, so a link put there at any moment, even
between check and use, is refused. No caller passes a path that a client wrote.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from api.errors import Gone, RangeNotSatisfiable

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Span:
    """The bytes ``start`` up to and without ``end`` of a file of ``size`` bytes; ``partial`` when a range was asked for."""

    start: int
    end: int
    size: int
    partial: bool


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open the regular file ``relative`` (from the database) under ``root``.

    Raises :class:`Gone` when it is missing, not a regular file, reached through a link, or not below ``root``.
    """
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or any(part in {"..", "."} for part in parts):
        raise Gone("the stored path of this file does not lie below the service's home")
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            # O_NONBLOCK: opening a pipe somebody left here must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(parts[-1], flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as exc:
        reason = "is a link" if exc.errno == errno.ELOOP else "cannot be opened"
        raise Gone(f"the file is recorded, but on disk it {reason} ({os.strerror(exc.errno or 0)})") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Gone("the file is recorded, but on disk it is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_span(file: BinaryIO, span: Span) -> Iterator[bytes]:
    """Yield the bytes of ``span`` in pieces and close the file, whatever happens."""
    with file:
        file.seek(span.start)
        left = span.end - span.start
        while left > 0:
            piece = file.read(min(CHUNK_BYTES, left))
            if not piece:
                return
            left -= len(piece)
            yield piece


def span_of(header: str | None, size: int) -> Span:
    """The bytes a Range header asks for (RFC 9110, section 14).

    Units other than bytes, several ranges and malformed headers are ignored, as the standard allows. Raises
    :class:`RangeNotSatisfiable` when the range begins beyond the end.
    """
    whole = Span(0, size, size, partial=False)
    unit, _, wanted = (header or "").partition("=")
    first, dash, last = wanted.strip().partition("-")
    if (
        unit.strip().lower() != "bytes"
        or not dash
        or not _is_number(first)
        or not _is_number(last)
        or not (first or last)
    ):
        return whole
    if first == "":
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return whole
    if start >= size or (first == "" and int(last) == 0):
        headers = {"Content-Range": f"bytes */{size}"}
        raise RangeNotSatisfiable(f"the file has {size} bytes", param="Range", headers=headers)
    return Span(start, end, size, partial=True)


def remove_below(root: Path, relative: str) -> None:
    """Remove the folder ``relative`` under ``root`` if it is there; links are removed, never followed."""
    target = root / PurePosixPath(relative)
    if not target.parent.resolve().is_relative_to(root.resolve()) or ".." in target.parts:
        return
    if target.is_symlink():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)


def _is_number(text: str) -> bool:
    return len(text) < 19 and (text == "" or (text.isascii() and text.isdigit()))
