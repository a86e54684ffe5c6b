"""The draw of a look."""

import hashlib
import hmac
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.damage.draws import draw, panel
from core.damage.observations import RuleError

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)

KEY = b"k" * 32
IDS = [f"item-{i}" for i in range(40)]


def test_the_smallest_hmac_codes_are_drawn():
    codes = {i: hmac.new(KEY, f"3 | abc | {i}".encode(), hashlib.sha256).hexdigest() for i in IDS}
    assert draw(KEY, 3, "abc", IDS, 7) == sorted(IDS, key=codes.__getitem__)[:7]


@STEADY
@given(st.permutations(IDS))
def test_the_order_of_the_pool_does_not_matter(shuffled):
    assert draw(KEY, 1, "abc", shuffled, 9) == draw(KEY, 1, "abc", IDS, 9)


def test_look_checkpoint_and_key_each_change_the_draw():
    one = draw(KEY, 1, "abc", IDS, 10)
    assert one != draw(KEY, 2, "abc", IDS, 10)
    assert one != draw(KEY, 1, "abd", IDS, 10)
    assert one != draw(b"other", 1, "abc", IDS, 10)


def test_every_item_is_drawn_equally_often():
    """4000 draws of 10 of 40: each count has mean 1000 and standard deviation 27; five of those is a fair bound."""
    counts = Counter(i for t in range(4000) for i in draw(KEY, t, "abc", IDS, 10))
    assert max(abs(counts[i] - 1000) for i in IDS) < 5 * (4000 * 0.25 * 0.75) ** 0.5


def test_the_panel_is_the_draw_before_any_checkpoint():
    assert panel(KEY, IDS, 5) == draw(KEY, 0, "panel", IDS, 5)


@pytest.mark.parametrize(
    ("key", "ids", "m", "param"),
    [(b"", IDS, 3, "key"), (KEY, IDS, 0, "looks.m"), (KEY, IDS, 41, "looks.m"), (KEY, ["a", "a"], 1, "item_ids")],
)
def test_bad_draws_are_refused_by_name(key, ids, m, param):
    with pytest.raises(RuleError) as caught:
        draw(key, 1, "abc", ids, m)
    assert caught.value.param == param
