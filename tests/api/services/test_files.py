"""Opening stored files and reading ranges."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import Gone, RangeNotSatisfiable
from api.services.files import open_below, read_span, remove_below, span_of


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Gone, match="regular file"):
        open_below(tmp_path, "pipe")


@pytest.mark.parametrize("relative", ["", "/etc/passwd", "../x", "a/../../x", "a/./../x", "missing", "folder"])
def test_what_is_not_a_file_below_the_root_is_refused(tmp_path: Path, relative: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Gone):
        open_below(tmp_path, relative)


def test_no_descriptor_is_left_open_after_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(Gone):
            open_below(tmp_path, "a/missing")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_removing_follows_no_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "runs").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("x")
    (root / "runs" / "link").symlink_to(outside)
    remove_below(root, "runs/link")
    remove_below(root, "../outside")
    remove_below(root, "runs/nothing")
    assert (outside / "kept").exists()
    assert not (root / "runs" / "link").exists()


@given(st.integers(1, 200), st.integers(0, 250), st.integers(0, 250))
def test_range_gives_exactly_the_bytes_asked_for(
    tmp_path_factory: pytest.TempPathFactory, size: int, first: int, last: int
) -> None:
    content = bytes(index % 251 for index in range(size))
    path = tmp_path_factory.mktemp("range") / "file"
    path.write_bytes(content)
    header = f"bytes={first}-{last}"
    if last < first:
        assert span_of(header, size).partial is False
    elif first >= size:
        with pytest.raises(RangeNotSatisfiable):
            span_of(header, size)
    else:
        span = span_of(header, size)
        assert b"".join(read_span(open_below(path.parent, "file"), span)) == content[first : last + 1]
