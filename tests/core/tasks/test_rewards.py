import pytest

from core.tasks.items import Item, ItemError
from core.tasks.pool import VerifierPool
from core.tasks.rewards import RewardSpec, format_term, grade_samples, reward
from core.tasks.verifiers import Outcome, Verdict


def verdict(outcome: Outcome) -> Verdict:
    return Verdict(outcome, "because", "5", "math", "math/1", 1.0)


def total_of(weights, outcome=Outcome.CORRECT, *, text=r"\boxed{5}", n_tokens=500, coin=0.2, gate=False):
    return reward(RewardSpec(weights, outcome_gate=gate), verdict(outcome), text, n_tokens, coin)


def test_terms_are_kept_raw_and_weighted_into_the_total():
    found = total_of({"math": 2.0, "length": 0.1, "format": 0.5, "random": 1.0})
    assert found.terms == {"math": 1.0, "length": -0.5, "format": 1.0, "random": 1.0}
    assert found.total == pytest.approx(2.0 - 0.05 + 0.5 + 1.0)


def test_weight_zero_logs_only():
    found = total_of({"math": 1.0, "length": 0.0})
    assert (found.total, found.terms["length"]) == (1.0, -0.5)


@pytest.mark.parametrize("outcome", [Outcome.WRONG, Outcome.NO_ANSWER, Outcome.TIMEOUT, Outcome.ERROR])
def test_every_other_judgement_is_a_zero_with_its_verdict(outcome):
    found = total_of({"auto": 1.0}, outcome)
    assert (found.total, found.verdict.verdict, found.verdict.reason) == (0.0, outcome, "because")


def test_a_sample_that_could_not_be_judged_is_masked():
    found = total_of({"math": 1.0, "random": 1.0}, Outcome.INFRA_ERROR)
    assert found.total is None
    assert found.terms == {"math": None, "random": 1.0}


def test_the_outcome_gate_lets_shaping_count_only_when_right():
    assert total_of({"math": 1.0, "random": 1.0}, Outcome.WRONG, gate=True).total == 0.0
    assert total_of({"math": 1.0, "random": 1.0}, Outcome.WRONG).total == 1.0
    assert total_of({"math": 1.0, "random": 1.0}, gate=True).total == 2.0


def test_a_term_without_a_value_adds_nothing():
    gym = Verdict(Outcome.CORRECT, "", "5", "reasoning_gym", "1")
    found = reward(RewardSpec({"auto": 1.0, "format": 3.0}), gym, "5", 1, 0.9)
    assert (found.total, found.terms["format"]) == (1.0, None)


def test_a_term_that_these_items_do_not_have_is_refused():
    with pytest.raises(ItemError, match=r"rewards: the term 'reasoning_gym'.*allowed: auto, math"):
        total_of({"reasoning_gym": 1.0})


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"so \boxed{5}", 1.0), ("so 5", 0.0), (r"\boxed{5} or \boxed{6}", 0.0),
     (r"<think>\boxed{1}</think>\boxed{5}", 1.0), (r"\boxed{5", 0.0)],
)  # fmt: skip
def test_the_mathematical_form_is_one_complete_box(text, value):
    assert format_term(text, "math") == value


def test_a_step_is_graded_in_order_and_its_coins_depend_on_seed_and_step_only():
    items = [Item("a", "p", "5", "math"), Item("b", "p", "6", "math")] * 8
    texts = [r"\boxed{5}"] * 16
    with VerifierPool(workers=1, time_limit_s=5) as pool:
        graded = [
            grade_samples(RewardSpec({"auto": 1.0, "random": 0.0}, seed=seed), pool, items, texts, [10] * 16, step=step)
            for seed, step in ((1, 1), (1, 1), (1, 2), (2, 1))
        ]
        with pytest.raises(ValueError, match="must be equal"):
            grade_samples(RewardSpec({"auto": 1.0}), pool, items, texts[1:], [10] * 16, step=1)
    assert [one.total for one in graded[0]] == [1.0, 0.0] * 8
    coins = [[one.terms["random"] for one in step] for step in graded]
    assert coins[0] == coins[1]
    assert coins[0] != coins[2]
    assert coins[0] != coins[3]
    assert set(coins[0]) == {0.0, 1.0}
