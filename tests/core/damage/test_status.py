"""The status document: its states, its sentence and the contract's fields."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from core.damage.eprocess import EProcess
from core.damage.mcnemar import McNemarSpending
from core.damage.observations import Observation
from core.damage.rules import frozen
from core.damage.status import BaseFacts, PrespecFacts, RunFacts, build_status
from core.damage.threshold import Threshold
from core.prespec.canonical import decimals_as_strings

CONTRACT = [
    "run_id", "state", "statement", "rule", "prespecified_at", "clock", "first_look_at", "spec_hash", "confirmatory", "looks",
    "next_look_at_step", "base", "current", "paired", "evidence", "decided_at", "decided_at_step", "action", "forgetting",
    "early_warnings",
]  # fmt: skip
EPROCESS = EProcess(n_pool=80, m=16, looks=3)
BASE = BaseFacts(0.375, 0.28, 0.48, noise_floor=0.025, correct=30.0)
PRESPEC = PrespecFacts(frozen_at=1_700_000_000.0, hash="ab" * 32)


@dataclass
class Row:
    step: int
    created_at: float
    n: int
    accuracy: float
    lost: float
    gained: float
    statistic: float
    decided: bool
    draw: list[dict[str, Any]]
    rule_state: dict[str, Any]
    ci_low: float = 0.1
    ci_high: float = 0.6
    extra: dict[str, Any] = field(default_factory=dict)


def rows(rule, looks):
    """Ask the rule at each look and store what a trainer would store."""
    state, result = {}, []
    for number, pairs in enumerate(looks, start=1):
        observed = [Observation(f"i{k:02d}", b, c) for k, (b, c) in enumerate(pairs)]
        decision = rule.look(state, observed)
        state = json.loads(json.dumps(decision.state))
        drawn = [{"item_id": o.item_id, "b": o.b, "c": o.c, "d": o.d} for o in observed]
        accuracy = sum(o.c for o in observed) / len(observed)
        t = decision.tally
        result.append(
            Row(
                10 * number,
                1_700_000_000.0 + number,
                t.n,
                accuracy,
                t.lost,
                t.gained,
                decision.statistic,
                decision.decided,
                drawn,
                state,
            )
        )
    return result


def status(rule, looks, state="running", **more):
    return build_status(
        run=RunFacts("0123456789ab", state, look_steps=(10, 20, 30)),
        rule=None if rule is None else decimals_as_strings(frozen(rule)),
        looks=rows(rule, looks) if rule else [],
        **{"base": BASE, "prespec": PRESPEC, **more},
    )


SAME = [(1, 1)] * 6 + [(0, 0)] * 10
RUINED = [(1, 0)] * 6 + [(0, 0)] * 10
WATCHED = [(1, 0)] * 7 + [(0, 0)] * 9


def test_it_has_the_contracts_fields_in_order_and_is_plain_json():
    for document in (status(EPROCESS, [SAME, RUINED]), status(None, []), status(EPROCESS, [])):
        assert list(document) == CONTRACT
        json.dumps(document, allow_nan=False)


def test_before_the_first_look_nothing_is_claimed():
    document = status(EPROCESS, [], base=None)
    assert document["state"] == "not_started"
    assert document["looks"] == 0
    assert document["next_look_at_step"] == 10
    assert document["current"] is document["paired"] is document["base"] is document["first_look_at"] is None
    assert document["evidence"]["value"] is None


def test_no_damage_is_shown_never_called_ok():
    document = status(EPROCESS, [SAME])
    assert document["state"] == "no_damage_shown"
    assert document["statement"].startswith(
        "No damage shown against base after 1 look: at step 10, 0 of 16 items were lost and 0 gained"
    )
    assert "pool's 80 items" in document["statement"]
    assert document["next_look_at_step"] == 20
    assert document["decided_at"] is document["decided_at_step"] is None


@pytest.mark.parametrize(
    ("run_state", "state"), [("damage_stopped", "stopped"), ("running", "damaged"), ("succeeded", "damaged")]
)
def test_damage_names_the_items_that_were_lost(run_state, state):
    document = status(EPROCESS, [SAME, RUINED, RUINED], run_state)
    assert document["state"] == state
    assert document["statement"].startswith("Damage shown against base")
    assert "6 of 16 items were lost and 0 gained" in document["statement"]
    assert document["paired"]["lost_items"] == [f"i{k:02d}" for k in range(6)]
    assert document["paired"]["lost_items_count"] == 6
    assert document["paired"]["margin_rejected"] > 0
    assert document["decided_at_step"] == 30
    assert document["decided_at"] == "2023-11-14T22:13:23.000Z"


def test_growing_evidence_is_a_watch():
    document = status(EPROCESS, [WATCHED])
    assert 5 <= document["evidence"]["value"] < 20
    assert document["state"] == "watch"
    assert document["statement"].startswith("No damage shown against base, but")


def test_too_little_to_ever_decide_is_insufficient():
    few = BaseFacts(0.01, 0.0, 0.1, correct=1.0)
    document = status(EPROCESS, [SAME], base=few)
    assert document["state"] == "insufficient"
    assert "too few items" in document["statement"]
    early = status(Threshold(16, 16, 3, points=20, consecutive=2), [SAME])
    assert early["state"] == "insufficient"
    assert "before look 2" in early["statement"]


def test_a_panel_asked_beyond_its_looks_is_exhausted_but_fresh_draws_are_not():
    looks = [SAME] * 4
    assert status(McNemarSpending(16, 16, 3), looks)["state"] == "exhausted"
    assert status(McNemarSpending(16, 16, 3), looks[:3])["state"] == "no_damage_shown"
    assert status(EPROCESS, looks)["state"] == "no_damage_shown"


def test_the_decision_outlives_a_recovery_under_action_warn():
    document = status(EProcess(80, 16, 3, action="warn"), [RUINED, RUINED, SAME])
    assert document["state"] == "damaged"
    assert document["decided_at_step"] == 20
    assert document["current"]["step"] == 30
    assert document["paired"]["lost"] == 0
    assert document["action"] == "warn"


def test_the_rule_is_shown_in_numbers_with_its_power():
    rule = status(EPROCESS, [])["rule"]
    assert (rule["rule"], rule["alpha"], rule["margin"], rule["references"]) == ("eprocess", 0.05, 0.01, ["base"])
    assert rule["detects"]["points"] >= 1
    assert 0.8 <= rule["detects"]["power"] <= 1
    assert rule["detects"]["base_accuracy"] == 0.6
    threshold = status(Threshold(16, 16, 3, points=20), [])["rule"]
    assert 0 <= threshold["detects"]["false_stop_rate"] <= 1


def test_measured_figures_replace_the_frozen_ones():
    assert status(EPROCESS, [], detects={"points": 7, "power": 0.9})["rule"]["detects"] == {"points": 7, "power": 0.9}


def test_freeze_clock_and_kind_of_claim_are_stated():
    document = status(EPROCESS, [])
    assert document["prespecified_at"] == "2023-11-14T22:13:20.000Z"
    assert (document["clock"], document["spec_hash"], document["confirmatory"]) == ("local", "ab" * 32, False)


def test_forgetting_is_measured_only_where_it_was_looked_at():
    assert status(EPROCESS, [])["forgetting"] == "not measured"
    assert status(EPROCESS, [], out_of_domain=["gsm8k", "ifeval"])["forgetting"] == "measured on gsm8k, ifeval"


def test_the_paired_difference_is_current_minus_base_and_labelled_descriptive():
    paired = status(EPROCESS, [[(1, 0)] * 3 + [(0, 1)] + [(0, 0)] * 12])["paired"]
    assert (paired["n"], paired["lost"], paired["gained"], paired["delta"]) == (16, 3, 1, -0.125)
    assert paired["ci"][0] < -0.125 < paired["ci"][1]
    assert paired["interval"].startswith("descriptive")
    assert paired["gained_items"] == ["i03"]


def test_long_lists_of_items_are_capped_with_a_count():
    paired = status(McNemarSpending(90, 90, 3), [[(1, 0)] * 70 + [(1, 1)] * 20])["paired"]
    assert len(paired["lost_items"]) == 50
    assert paired["lost_items_count"] == 70


def test_a_final_run_has_no_next_look():
    assert status(EPROCESS, [SAME], "succeeded")["next_look_at_step"] is None


def test_a_run_without_a_damage_stop_says_so():
    document = status(None, [])
    assert document["rule"] is document["action"] is document["evidence"] is None
    assert "no damage stop" in document["statement"]


def test_every_statement_is_one_sentence():
    for looks in ([], [SAME], [WATCHED], [RUINED, RUINED]):
        statement = status(EPROCESS, looks)["statement"]
        assert statement.endswith(".")
        assert ". " not in statement
        assert "ok" not in statement.lower().split()
