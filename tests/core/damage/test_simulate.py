"""The simulated figures that the design states, with tolerances they could miss, and the error bound."""

import math

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from core.damage.eprocess import EProcess, log_process
from core.damage.mcnemar import McNemarSpending, one_sided_p
from core.damage.observations import RuleError
from core.damage.simulate import Scenario, detects, false_stop_rate, simulate
from core.damage.threshold import Threshold

EPROCESS = EProcess(n_pool=1000, m=200, looks=30)


@pytest.mark.parametrize(
    ("drop", "stated", "tolerance", "look"),
    [(0.0, 0.0, 0.003, None), (0.02, 0.21, 0.06, 24), (0.05, 1.0, 0.003, 13), (0.1, 1.0, 0.001, 10)],
)
def test_stop_rates_at_five_percent_churn_in_all(drop, stated, tolerance, look):
    """m = 200, T = 30, base 60 %, 2.5 % of items lost and as many gained without damage, damage from look 10."""
    result = simulate(EPROCESS, Scenario(0.6, 0.025, 0.025, drop, 10), runs=2000)
    assert result.stopped == pytest.approx(stated, abs=tolerance)
    assert look is None or result.median_look == pytest.approx(look, abs=1)


@pytest.mark.parametrize(
    ("gained", "stated", "tolerance"),
    [(0.0, 0.996, 0.01), (0.02, 0.28, 0.05), (0.05, 0.08, 0.03), (0.15, 0.014, 0.012)],
)
def test_the_power_against_two_points_by_gained_share(gained, stated, tolerance):
    result = simulate(EPROCESS, Scenario(0.6, gained, gained, 0.02, 10), runs=2000)
    assert result.stopped == pytest.approx(stated, abs=tolerance)


@pytest.mark.parametrize("gained", [0.0, 0.02])
@pytest.mark.parametrize("m", [16, 64, 200])
def test_false_stops_at_the_margin_stay_below_alpha(gained, m):
    """The hardest undamaged pool: a net loss of exactly the margin. Three standard errors above alpha would be .065."""
    result = simulate(EProcess(1000, m, 30), Scenario(0.6, gained, gained + 0.01), runs=2000)
    assert result.stopped <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_the_same_process_on_a_fixed_panel_would_break_the_bound():
    """Why draws are fresh: panels of 200 from a population at the margin, asked 30 times, multiply their own luck."""
    panels = np.random.default_rng(1).multinomial(200, [0.06, 0.05, 0.89], size=300)

    def stops(lost, gained, same):
        return max(log_process([[(1.0, lost), (-1.0, gained), (0.0, same)]] * 30, 30, 0.01)) >= math.log(20)

    assert np.mean([stops(*panel) for panel in panels]) > 0.2


@pytest.mark.parametrize(
    ("n", "looks", "gained", "drop", "stated"),
    [(200, 30, 0.05, 0.1, 0.57), (200, 30, 0.1, 0.1, 0.33), (30, 10, 0.05, 0.3, 0.43)],
)
def test_the_power_of_the_fixed_panel(n, looks, gained, drop, stated):
    result = simulate(McNemarSpending(n, n, looks), Scenario(0.6, gained, gained, drop), runs=4000)
    assert result.stopped == pytest.approx(stated, abs=0.035)


def test_the_panels_simulated_power_equals_the_enumerated_one():
    """A panel of 30 whose looks share all luck: sum the multinomial over every (lost, gained) that decides."""
    shares = (0.35, 0.05, 0.6)
    exact = sum(
        multinomial.pmf((lost, gained, 30 - lost - gained), 30, shares)
        for lost in range(31)
        for gained in range(31 - lost)
        if one_sided_p(lost, gained) <= 0.005
    )
    result = simulate(McNemarSpending(30, 30, 10), Scenario(0.6, 0.05, 0.05, 0.3), runs=20_000)
    assert result.stopped == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


@pytest.mark.parametrize("persistence", [0.0, 0.85, 1.0])
def test_mcnemars_false_stops_stay_below_alpha(persistence):
    result = simulate(McNemarSpending(200, 200, 30), Scenario(0.6, 0.05, 0.05, persistence=persistence), runs=2000)
    assert result.stopped <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_an_uncorrected_test_at_every_look_stops_about_a_third_of_undamaged_runs():
    """alpha/T with alpha = 30 * .05 spends .05 at each look."""
    rule = McNemarSpending(200, 200, 30, alpha=1.5)
    result = simulate(rule, Scenario(0.6, 0.05, 0.05, persistence=0.85), runs=2000)
    assert result.stopped == pytest.approx(0.32, abs=0.06)


def test_the_false_stops_of_independent_single_looks_equal_a_binomial_tail():
    """Base and gains are absent, so each look loses Bin(50, .05) items; three or more lost are six points."""
    rule = Threshold(50, 50, 5, points=6, consecutive=1)
    result = simulate(rule, Scenario(1.0, 0.0, 0.05, persistence=0.0), runs=20_000)
    exact = 1 - binom.cdf(2, 50, 0.05) ** 5
    assert result.stopped == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


def test_consecutive_looks_lower_the_false_stops_of_a_threshold():
    once, thrice = (
        false_stop_rate(Threshold(200, 200, 30, points=5, consecutive=j), base_accuracy=0.6, gained=0.05)
        for j in (1, 3)
    )
    assert 0.3 < once < 0.6
    assert thrice < 0.15


def test_damage_that_begins_later_is_found_later():
    early, late = (simulate(EPROCESS, Scenario(0.6, 0.02, 0.02, 0.1, start), runs=200).median_look for start in (3, 20))
    assert 3 <= early < late
    assert late >= 20


def test_one_seed_gives_one_answer():
    assert detects(EPROCESS, seed=3) == detects(EPROCESS, seed=3)


def test_detects_is_the_smallest_drop_with_the_power():
    found = detects(EPROCESS)
    assert found["power"] >= 0.8
    below = simulate(EPROCESS, Scenario(0.6, 0.05, 0.05, (found["points"] - 1) / 100, found["from_look"]), runs=2000)
    assert below.stopped < 0.85
    assert {"base_accuracy": 0.6, "gained_share": 0.05, "n_pool": 1000}.items() <= found.items()


def test_a_panel_too_small_to_detect_anything_says_so():
    assert detects(McNemarSpending(12, 12, 30))["points"] is None
    assert detects(McNemarSpending(12, 12, 30))["power"] is None


@pytest.mark.parametrize("accuracy", [0.0, 0.03, 0.5, 1.0])
def test_any_base_accuracy_can_be_asked(accuracy):
    found = detects(EProcess(80, 16, 3), base_accuracy=accuracy)
    assert found["gained_share"] <= min(accuracy, 1 - accuracy)


def test_only_the_threshold_carries_a_simulated_false_stop_rate():
    assert 0 < detects(Threshold(200, 200, 30, points=5))["false_stop_rate"] < 0.2
    assert "false_stop_rate" not in detects(EPROCESS)


@pytest.mark.parametrize(
    "shares", [{"base_accuracy": 1.2}, {"drop": 0.6}, {"gained": 0.5}, {"lost": -0.1}, {"persistence": 2}]
)
def test_shares_that_no_pool_can_have_are_refused(shares):
    with pytest.raises(RuleError):
        Scenario(**shares)
