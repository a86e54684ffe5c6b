"""Reading log files from their end and behind a cursor."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import InvalidRequest
from api.services import logs
from api.services.logs import Wanted, follow, parse_cursor, tail

ALL = Wanted()


def _texts(page: logs.LogPage) -> list[str]:
    return [entry.text for entry in page.entries]


def test_tail_crosses_blocks(tmp_path: Path) -> None:
    path = tmp_path / "attempt-1.log"
    lines = [f"INFO line {number} " + "x" * 50 for number in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    page = tail([(1, path)], ALL, 3000)
    assert _texts(page) == lines[-3000:]
    assert page.has_more is True


def test_tail_reaches_into_the_attempt_before(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("INFO a\nINFO b\n")
    second.write_text("INFO c\n")
    page = tail([(1, first), (2, second)], ALL, 2)
    assert [(entry.attempt, entry.text) for entry in page.entries] == [(1, "INFO b"), (2, "INFO c")]


def test_tail_reads_no_more_than_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_SCAN_BYTES", 100)
    path = tmp_path / "1"
    path.write_text("INFO needle\n" + "INFO hay\n" * 100)
    page = tail([(1, path)], Wanted(search="needle"), 1)
    assert (page.entries, page.has_more) == ([], True)


def test_overlong_line_is_cut_and_does_not_hide_others(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.write_bytes(b"INFO first\n" + b"y" * 300_000 + b"\nINFO last\n")
    texts = _texts(tail([(1, path)], ALL, 10))
    assert (texts[0], texts[-1]) == ("INFO first", "INFO last")
    assert max(len(text) for text in texts) <= 128 * 1024


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.write_bytes(b"INFO \xff\x00 end\r\n")
    assert _texts(tail([(1, path)], ALL, 1)) == ["INFO \ufffd\ufffd end"]


@given(st.lists(st.sampled_from(["INFO a", "ERROR b", "  c", "", "DEBUG d"]), max_size=12), st.integers(1, 5))
def test_following_in_pages_gives_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], limit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "1"
    path.write_text("".join(f"{line}\n" for line in lines))
    found: list[str] = []
    cursor = "0:0"
    while True:
        page = follow([(1, path)], ALL, limit, cursor)
        found += _texts(page)
        cursor = page.next
        if not page.has_more:
            break
    assert found == lines


def test_following_goes_on_into_the_next_attempt(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("INFO a\n")
    cursor = tail([(1, first)], ALL, 5).next
    second.write_text("INFO b\n")
    assert _texts(follow([(1, first), (2, second)], ALL, 5, cursor)) == ["INFO b"]


@pytest.mark.parametrize("cursor", ["", "1", "1:", ":1", "-1:0", "1:1:1", "9" * 30 + ":1", "a:b"])
def test_malformed_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cursor(cursor)
