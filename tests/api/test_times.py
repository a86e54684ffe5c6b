"""Times as the API writes them, against the standard library's own formatting."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from api.times import from_iso, iso


@given(st.floats(min_value=-2e9, max_value=4e9))
def test_a_time_is_written_as_the_standard_library_writes_it_cut_to_milliseconds(seconds: float) -> None:
    expected = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    assert iso(seconds) == expected.removesuffix("+00:00") + "Z"


def test_a_written_time_reads_back_to_the_millisecond() -> None:
    assert from_iso(iso(1_800_000_000.25)) == 1_800_000_000.25
