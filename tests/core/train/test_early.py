"""Early warnings of one step's rollouts, against counts by hand."""

import pytest

from core.train.curves import SampleFacts, reward_curves
from core.train.early import early_curves


def sample(group: int, verdict: str, tokens: int = 10, extracted: str | None = None, **more: object) -> SampleFacts:
    return SampleFacts(group, 1.0, {}, tokens, False, verdict=verdict, extracted=extracted, **more)  # type: ignore[arg-type]


STEP = [
    *(sample(0, "correct", 10, "5") for _ in range(4)),
    *(sample(1, "wrong", 30, str(n)) for n in range(4)),
    sample(2, "correct", 20, "5"), sample(2, "wrong", 40, "6"), sample(2, "timeout", 50), sample(2, "no_answer", 60),
    sample(3, "wrong", 7, "1"), sample(3, "infra_error", 1000),
]  # fmt: skip


def test_groups_answers_lengths_and_timeouts_are_counted() -> None:
    found = early_curves(STEP)
    assert found["early/all_right"] == 1 / 4
    assert found["early/all_wrong"] == 2 / 4
    assert found["early/pass_at_k"] == 2 / 4
    assert found["early/avg_at_k"] == pytest.approx((1 + 0 + 1 / 4 + 0) / 4)
    # One answer of four; four of four; 5, 6 and "none" of four; one of the one that could be judged.
    assert found["early/distinct_answers"] == pytest.approx((1 / 4 + 1 + 3 / 4 + 1) / 4)
    assert found["early/length_right"] == pytest.approx((4 * 10 + 20) / 5)
    assert found["early/length_wrong"] == pytest.approx((4 * 30 + 40 + 50 + 60 + 7) / 8)
    assert found["early/verifier_timeout_share"] == pytest.approx(1 / len(STEP))


def test_curves_that_nothing_was_seen_of_are_left_out() -> None:
    assert "early/length_right" not in early_curves([sample(0, "wrong")])
    assert early_curves([]) == {}
    assert early_curves([sample(0, "infra_error")]) == {"early/verifier_timeout_share": 0.0}


def test_weighted_values_are_curves_of_their_own_and_add_up() -> None:
    term = "file:a.py:f"
    facts = [
        SampleFacts(0, 1.2, {"math": 1.0, term: 2.0}, 5, False, weighted={"math": 1.0, term: 0.2}),
        SampleFacts(0, 0.0, {"math": 0.0, term: None}, 5, False, weighted={"math": 0.0, term: 0.0}, failed=(term,)),
        SampleFacts(1, None, {"math": None, term: 1.0}, 5, False),
    ]
    found = reward_curves(facts)
    assert (found["reward/math"], found[f"reward/{term}"]) == (0.5, 1.5)
    assert found["reward_weighted/math"] + found[f"reward_weighted/{term}"] == pytest.approx(found["reward"])
    assert found[f"reward_failed/{term}"] == 1.0
    assert "reward_failed/math" not in found
