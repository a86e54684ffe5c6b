"""How values are said."""

import string
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import words

AT = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def before(**ago):
    return (AT - timedelta(**ago)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        ({"seconds": 3}, "just now"),
        ({"seconds": -3}, "just now"),
        ({"seconds": 42}, "42 s ago"),
        ({"minutes": 5, "seconds": 59}, "5 min ago"),
    ],
)
def test_a_time_of_the_last_hour_is_told_by_its_age(ago, said):
    assert words.moment(before(**ago), AT) == said


def test_older_times_are_told_by_the_local_calendar():
    local = (AT - timedelta(hours=2)).astimezone()
    here = AT.astimezone()
    day = "today" if local.date() == here.date() else "yesterday"
    assert words.moment(before(hours=2), AT) == f"{day} {local:%H:%M}"
    older = (AT - timedelta(days=40)).astimezone()
    assert words.moment(before(days=40), AT) == f"{older.day} {older:%b} {older:%H:%M}"
    assert str((AT - timedelta(days=400)).astimezone().year) in words.moment(before(days=400), AT)
    assert words.moment(None) == words.NONE


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (372, "6 min 12 s"),
        (3 * 3600 + 300, "3 h 05 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations_use_two_units_at_most(seconds, said):
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (0.25, "0.25"),
        (1 / 3, "0.3333"),
        (1234.5678, "1235"),
        (1e-6, "1.00e-06"),
        (-2.5e7, "-2.50e+07"),
        (None, "-"),
    ],
)
def test_numbers_have_four_digits_at_most(value, said):
    assert words.number(value) == said


def test_a_spark_rises_with_its_values_and_leaves_gaps_where_values_are_lost():
    assert words.spark([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert words.spark([0.0, None, 7.0]) == "▁ █"
    assert words.spark([]) == words.spark([None]) == ""
    assert len(set(words.spark([2.0, 2.0, 2.0]))) == 1


@given(st.lists(st.floats(-1e12, 1e12) | st.none(), max_size=300), st.integers(1, 60))
def test_a_spark_is_never_wider_than_asked(values, width):
    shape = words.spark(values, width)
    assert len(shape) <= width
    assert not set(shape) & set(string.printable) - {" "}


def test_a_long_curve_is_averaged_in_groups():
    # 48 values in 24 cells: pairs (0,1), (2,3) ... have means 0.5, 2.5, ..., 46.5.
    assert words.spark([float(value) for value in range(48)], 24) == words.spark(
        [0.5 + 2 * cell for cell in range(24)], 24
    )


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("10%\r100%", "10%\\r100%"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("tab\tand\nline, Zürich ✓ 漢", "tab\tand\nline, Zürich ✓ 漢"),
    ],
)
def test_what_would_steer_a_terminal_is_spelled_out(written, shown):
    assert words.plain(written) == shown


@given(st.text())
def test_plain_text_stays_as_it_is_and_is_plain_afterwards(text):
    once = words.plain(text)
    assert words.plain(once) == once
    assert not any(ord(char) < 32 and char not in "\t\n" for char in once)
    if text.isprintable():
        assert once == text
