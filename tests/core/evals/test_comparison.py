import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, t

from core.evals.comparison import (
    ItemsDifferError,
    mcnemar_one_sided,
    mcnemar_two_sided,
    newcombe,
    paired,
    paired_items,
)
from core.evals.metrics import wilson


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_exact_tests_agree_with_scipy(lost, gained):
    if lost + gained == 0:
        assert mcnemar_one_sided(lost, gained) == mcnemar_two_sided(lost, gained) == 1.0
        return
    assert mcnemar_one_sided(lost, gained) == pytest.approx(
        binomtest(lost, lost + gained, alternative="greater").pvalue, rel=1e-9
    )
    assert mcnemar_two_sided(lost, gained) == pytest.approx(binomtest(lost, lost + gained).pvalue, rel=1e-9)


def test_many_changes_do_not_overflow():
    assert mcnemar_two_sided(3000, 3000) == 1.0
    assert 0 < mcnemar_one_sided(1100, 900) < 1e-5


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),  # Newcombe 1998 (paired), table II, method 10
        ((30, 0, 0, 70), -0.0243, 0.0243),  # by hand: Wilson 0.2189 to 0.3958, phi 2050/2100
    ],
)
def test_the_interval_of_a_published_example(cells, low, high):
    found = newcombe(*cells)
    assert found == pytest.approx((low, high), abs=2e-4)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_the_interval_holds_the_difference_and_mirrors(pairs):
    before, after = [float(one) for one, _ in pairs], [float(one) for _, one in pairs]
    found, mirrored = paired(before, after), paired(after, before)
    assert -1 <= found.ci[0] <= found.delta + 1e-12
    assert found.delta - 1e-12 <= found.ci[1] <= 1
    assert found.ci == pytest.approx((-mirrored.ci[1], -mirrored.ci[0]))
    assert (found.lost, found.gained) == (mirrored.gained, mirrored.lost)
    assert found.delta == pytest.approx(np.mean(after) - np.mean(before))
    assert found.method == "newcombe_10"


def test_counts_of_a_small_example():
    found = paired([1, 1, 1, 0, 0], [0, 0, 1, 1, 0])
    assert (found.n, found.lost, found.gained, found.delta) == (5, 2, 1, pytest.approx(-0.2))
    assert found.p_value == 1.0
    assert found.p_lost == 0.5


def test_shares_use_students_interval_over_items():
    before, after = [0.5, 0.25, 1.0, 0.0], [0.75, 0.25, 0.5, 0.25]
    differences = np.array(after) - np.array(before)
    low, high = t.interval(0.95, 3, loc=differences.mean(), scale=differences.std(ddof=1) / 2)
    found = paired(before, after)
    assert (found.method, found.lost, found.gained, found.clusters) == ("student", 1, 2, 4)
    assert found.ci == pytest.approx((low, high), abs=1e-9)
    assert found.standard_error == pytest.approx(differences.std(ddof=1) / 2)


def test_items_that_share_a_source_count_as_one_witness():
    before, after = [0.0] * 12, [1.0] * 3 + [0.0] * 9
    clusters = [number // 3 for number in range(12)]
    alone, together = paired(before, after), paired(before, after, clusters=clusters)
    sums = np.array([3 * 0.75, -0.75, -0.75, -0.75])
    error = (4 / 3 * (sums**2).sum()) ** 0.5 / 12
    assert (alone.method, together.method, together.clusters) == ("newcombe_10", "student", 4)
    assert together.standard_error == pytest.approx(error)
    assert together.ci[0] == pytest.approx(0.25 - t.ppf(0.975, 3) * error)
    assert together.ci[0] < alone.ci[0]


def test_shares_that_all_stayed_leave_room_for_what_was_not_seen():
    found = paired([0.5] * 20, [0.5] * 20)
    assert found.ci == (-wilson(0, 20).high, wilson(0, 20).high)
    assert paired([0.5], [0.75]).ci == (-1.0, 1.0)


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_the_interval_covers_as_often_as_it_says(spread):
    generator = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        shift = generator.normal(0.02, spread, size=(12, 1)) + generator.normal(0, 0.05, size=(12, 3))
        before = np.full(36, 0.5)
        after = np.clip(before + shift.ravel() * 0.3, 0, 1)
        low, high = paired(before.tolist(), after.tolist(), clusters=[n // 3 for n in range(36)]).ci
        held += low <= 0.006 <= high
    assert 0.92 <= held / 400 <= 0.98


def test_different_items_are_refused_naming_the_difference():
    with pytest.raises(ItemsDifferError, match=r"1 only in the first \(b\); 2 only in the second \(c, d\)"):
        paired_items({"a": 1, "b": 0}, {"a": 1, "c": 0, "d": 1})
    with pytest.raises(ItemsDifferError, match="neither"):
        paired_items({}, {})
    with pytest.raises(ItemsDifferError, match="2 scores before, 1 after"):
        paired([1, 0], [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        paired([2], [1])


def test_items_are_matched_by_id_and_not_by_order():
    assert paired_items({"a": 1, "b": 0}, {"b": 0, "a": 1}).lost == 0
