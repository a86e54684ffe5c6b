"""Streams are named, typed, independent of each other, and the same for ever."""

from hypothesis import given
from hypothesis import strategies as st

from core.streams import stream_seed, uniforms

NAMES = st.lists(st.one_of(st.text(max_size=20), st.integers(0, 10**6)), min_size=1, max_size=4)


def test_a_known_stream_does_not_change_between_releases() -> None:
    assert stream_seed(1, "rollout", 3, "item-7", 0) == 5553146105624170525  # sha256sum of the name, by hand


def test_a_number_and_its_text_name_different_streams() -> None:
    assert stream_seed(0, "step", 1) != stream_seed(0, "step", "1")


@given(st.integers(0, 2**31), NAMES, NAMES)
def test_different_names_give_different_seeds(seed: int, left: list[str | int], right: list[str | int]) -> None:
    assert (stream_seed(seed, *left) == stream_seed(seed, *right)) == (left == right)
    assert 0 <= stream_seed(seed, *left) < 2**63


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert uniforms(5, "a", n=10)[:4] == uniforms(5, "a", n=4)
