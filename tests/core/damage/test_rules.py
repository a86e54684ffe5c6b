"""The choice of a rule, its defaults, and specifications that cannot work."""

import json

import pytest

from core.damage.eprocess import EProcess
from core.damage.mcnemar import McNemarSpending
from core.damage.observations import RuleError
from core.damage.rules import frozen, make_rule, rule_from_frozen
from core.damage.threshold import Threshold
from core.prespec.canonical import decimals_as_strings

RESOLVED = {
    "rule": None,
    "action": "warn",
    "alpha": 0.05,
    "margin": 0.01,
    "watch": 5.0,
    "points": 5.0,
    "consecutive": 2,
}


@pytest.mark.parametrize(
    ("m", "n_pool", "kind", "expected_m"),
    [
        (None, 1000, EProcess, 200),
        (None, 5000, EProcess, 200),
        (None, 320, EProcess, 64),
        (None, 319, McNemarSpending, 319),
        (64, 320, EProcess, 64),
        (64, 319, McNemarSpending, 64),
        (63, 1000, McNemarSpending, 63),
        (None, 30, McNemarSpending, 30),
    ],
)
def test_the_pool_chooses_the_rule(m, n_pool, kind, expected_m):
    rule = make_rule({**RESOLVED, "m": m}, n_pool, 10)
    assert isinstance(rule, kind)
    assert (rule.m, rule.n_pool, rule.looks, rule.action) == (expected_m, n_pool, 10, "warn")


def test_a_named_rule_wins_over_the_pool():
    assert make_rule({"rule": "eprocess", "m": 16}, 80, 3) == EProcess(80, 16, 3)
    assert isinstance(make_rule({"rule": "mcnemar_spending"}, 1000, 3), McNemarSpending)
    assert make_rule({**RESOLVED, "rule": "threshold"}, 100, 3) == Threshold(100, 100, 3, 5.0, 2, "warn")


def test_several_suites_split_alpha():
    assert make_rule({"suites": 2}, 1000, 10).alpha == 0.025


@pytest.mark.parametrize(
    ("spec", "n_pool", "looks", "param"),
    [
        ({"rule": "magic"}, 100, 10, "damage_stop.rule"),
        ({"rule": "trigger_reserve"}, 100, 10, "damage_stop.rule"),
        ({"action": "rollback"}, 100, 10, "damage_stop.action"),
        ({"alpha": 0.0}, 100, 10, "damage_stop.alpha"),
        ({"alpha": 0.5}, 100, 10, "damage_stop.alpha"),
        ({"alpha": "0.05"}, 100, 10, "damage_stop.alpha"),
        ({"alpha": float("nan")}, 100, 10, "damage_stop.alpha"),
        ({"margin": 1.0, "rule": "eprocess"}, 100, 10, "damage_stop.margin"),
        ({"margin": -0.1, "rule": "eprocess"}, 100, 10, "damage_stop.margin"),
        ({"watch": 0.5}, 100, 10, "damage_stop.watch"),
        ({"rule": "threshold", "points": 0}, 100, 10, "damage_stop.points"),
        ({"rule": "threshold", "points": 101}, 100, 10, "damage_stop.points"),
        ({"rule": "threshold", "points": 5, "consecutive": 11}, 100, 10, "damage_stop.consecutive"),
        ({"infra_failures": "wrong"}, 100, 10, "damage_stop.infra_failures"),
        ({"lambda": 1}, 100, 10, "damage_stop.lambda"),
        ({"m": 101}, 100, 10, "looks.m"),
        ({"m": 0}, 100, 10, "looks.m"),
        ({"m": True}, 100, 10, "looks.m"),
        ({"m": 9}, 100, 30, "looks.m"),
        ({"rule": "eprocess", "m": 1}, 100, 1, "looks.m"),
        ({"rule": "eprocess", "base_runs": 1}, 1000, 10, "looks.base_runs"),
        ({}, 0, 10, "data.holdout"),
        ({}, 100, 0, "looks.every"),
    ],
)
def test_an_impossible_specification_is_refused_by_field(spec, n_pool, looks, param):
    with pytest.raises(RuleError) as caught:
        make_rule(spec, n_pool, looks)
    assert caught.value.param == param
    assert caught.value.hint


@pytest.mark.parametrize(
    "rule",
    [make_rule({"alpha": 0.1}, 1000, 7), make_rule({}, 50, 7), make_rule({"rule": "threshold", "points": 2.5}, 50, 7)],
)
def test_a_frozen_rule_can_be_rebuilt_also_from_decimal_strings(rule):
    assert rule_from_frozen(json.loads(json.dumps(frozen(rule)))) == rule
    assert rule_from_frozen(decimals_as_strings(frozen(rule))) == rule


def test_the_frozen_eprocess_states_everything_that_decides():
    stated = frozen(make_rule({}, 1000, 30))
    assert stated.pop("detects")["power"] >= 0.8
    assert stated == {
        "rule": "eprocess",
        "n_pool": 1000,
        "m": 200,
        "looks": 30,
        "alpha": 0.05,
        "margin": 0.01,
        "watch": 5.0,
        "action": "stop",
        "infra_failures": "zero",
        "base_runs": 2,
        "bets": [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "weights": "1/looks",
        "draw": "fresh at every look",
    }
