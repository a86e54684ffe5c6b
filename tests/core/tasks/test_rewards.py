import pytest

from core.recipes.rewards import RewardTerm
from core.tasks.answers import Answer, template_opening
from core.tasks.items import Item, ItemError
from core.tasks.pool import VerifierPool
from core.tasks.reward_pool import Scored
from core.tasks.rewards import RewardSpec, failed_terms, format_term, grade_samples, reward
from core.tasks.verifiers import Outcome, Verdict


def verdict(outcome: Outcome) -> Verdict:
    return Verdict(outcome, "because", "5", "math", "math/1", 1.0)


ITEM = Item("a", "p", "5", "math")


def terms(weights) -> dict[str, RewardTerm]:
    return {
        name: RewardTerm(**given) if isinstance(given, dict) else RewardTerm(weight=given)
        for name, given in weights.items()
    }


def total_of(weights, outcome=Outcome.CORRECT, *, text=r"\boxed{5}", n_tokens=500, coin=0.2, gate=False, own=None):
    answer = Answer(ITEM, "prompt", text, n_tokens)
    return reward(RewardSpec(terms(weights), outcome_gate=gate), verdict(outcome), answer, coin, own)


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
    found = reward(RewardSpec(terms({"auto": 1.0, "format": 3.0})), gym, Answer(ITEM, "", "5", 1), 0.9)
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


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"<think>hm</think>\boxed{5}", 1.0), ("<think>\nhm\n</think>\n\nso \\boxed{5}", 1.0), (r"\boxed{5}", 0.0),
     (r"hm</think>\boxed{5}", 0.0), (r"<think>hm \boxed{5}", 0.0), (r"<think> </think>\boxed{5}", 0.0),
     (r"well <think>hm</think>\boxed{5}", 0.0), (r"<think>a</think><think>b</think>\boxed{5}", 0.0),
     (r"<think>\boxed{5}</think>so 5", 0.0), ("<think>hm</think>", 0.0)],
)  # fmt: skip
def test_with_think_the_form_is_one_thought_and_then_the_box(text, value):
    assert format_term(text, "math", think=True) == value


def test_graders_that_ask_for_no_form_can_still_ask_for_thoughts():
    assert format_term("<think>hm</think>5", "reasoning_gym", think=True) == 1.0
    assert format_term("5", "reasoning_gym", think=True) == 0.0
    assert format_term("5", "reasoning_gym") is None


@pytest.mark.parametrize(
    ("prompt", "prefill", "opening"),
    [("<|user|>2+2<|assistant|><think>\n", "", "<think>\n"), ("<|assistant|>", "", ""),
     ("<|assistant|>So \\boxed{", "So \\boxed{", ""), ("<|assistant|><think>\nOkay", "Okay", "<think>\n"),
     ("<|assistant|><think>\n", "<think>\n", ""), ("<think>\n\n</think>\n\n", "", "<think>\n\n</think>\n\n"),
     ("say <think> first<|assistant|>", "", "")],
)  # fmt: skip
def test_the_tag_that_a_template_opens_belongs_to_the_answer(prompt, prefill, opening):
    assert template_opening(prompt, prefill) == opening


@pytest.mark.parametrize(
    ("opening", "prefill", "sampled"),
    [("<think>\n", "", r"hm</think>\boxed{5}"), ("", "<think>\n", r"hm</think>\boxed{5}"),
     ("", "", r"<think>hm</think>\boxed{5}"), ("", r"<think>hm</think>\boxed{", "5}")],
)  # fmt: skip
def test_the_form_is_that_of_the_whole_answer_whoever_began_it(opening, prefill, sampled):
    answer = Answer(ITEM, "", prefill + sampled, 5, opening)
    spec = RewardSpec(terms({"math": 1.0, "format": {"weight": 1.0, "think": True}}))
    assert reward(spec, verdict(Outcome.CORRECT), answer, 0.5).terms["format"] == 1.0


def test_the_length_penalty_begins_behind_the_free_tokens():
    found = total_of({"math": 1.0, "length": {"weight": 1.0, "per": 100, "free": 400}})
    assert found.terms["length"] == -1.0
    assert total_of({"math": 1.0, "length": {"weight": 1.0, "free": 500}}).terms["length"] == 0


def test_the_coin_has_the_asked_probability():
    assert total_of({"math": 1.0, "random": {"weight": 1.0, "probability": 0.1}}).terms["random"] == 0.0
    assert total_of({"math": 1.0, "random": {"weight": 1.0, "probability": 0.3}}).terms["random"] == 1.0


def test_weighted_values_add_up_to_the_reward_and_are_zero_behind_the_gate():
    weights = {"math": 2.0, "length": 0.1, "random": 0.0}
    found = total_of(weights)
    assert found.weighted == {"math": 2.0, "length": pytest.approx(-0.05), "random": 0.0}
    assert found.total == pytest.approx(sum(found.weighted.values()))
    closed = total_of(weights, Outcome.WRONG, gate=True)
    assert (closed.total, closed.weighted, closed.terms["length"]) == (
        0.0,
        {"math": 0.0, "length": 0.0, "random": 0.0},
        -0.5,
    )


def test_an_own_function_without_a_value_adds_nothing_and_the_machinerys_failure_masks():
    name = "file:mine.py:score"
    weights = {"math": 1.0, name: 0.5}
    found = total_of(weights, own={name: Scored(0.8)})
    assert (found.total, found.terms[name]) == (pytest.approx(1.4), 0.8)
    failed = total_of(weights, own={name: Scored(None, "ZeroDivisionError: division by zero")})
    assert (failed.total, failed.terms[name]) == (1.0, None)
    assert total_of(weights, own={name: Scored(None, "no process", infra=True)}).total is None
    assert failed_terms([found, failed, failed]) == {name: (2, "ZeroDivisionError: division by zero")}
    assert total_of(weights, Outcome.WRONG, own={name: Scored(1.0)}, gate=True).total == 0.0


def test_a_step_is_graded_in_order_and_its_coins_depend_on_seed_and_step_only():
    items = [Item("a", "p", "5", "math"), Item("b", "p", "6", "math")] * 8
    answers = [Answer(item, "p", r"\boxed{5}", 10) for item in items]
    with VerifierPool(workers=1, time_limit_s=5) as pool:
        graded = [
            grade_samples(RewardSpec(terms({"auto": 1.0, "random": 0.0}), seed=seed), pool, answers, step=step)
            for seed, step in ((1, 1), (1, 1), (1, 2), (2, 1))
        ]
    assert [one.total for one in graded[0]] == [1.0, 0.0] * 8
    coins = [[one.terms["random"] for one in step] for step in graded]
    assert coins[0] == coins[1]
    assert coins[0] != coins[2]
    assert coins[0] != coins[3]
    assert set(coins[0]) == {0.0, 1.0}
