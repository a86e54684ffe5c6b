import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.recipes.gym_tasks import UNSAFE_TASKS
from core.tasks.sources import generate_items
from core.tasks.verifiers import Outcome
from core.tasks.verifiers.reasoning_gym import extract, grade


@pytest.fixture(scope="module")
def sums():
    return generate_items(
        "chain_sum", {"size": 5, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, seed=3
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("13", "13"),
        ("The answer is 13.", "13"),
        ("4 + 9 = 13", "13"),
        ("5 - 9 = -4", "-4"),
        ("5 - 9", "9"),
        ("5-9", "9"),
        ("x = - 4", "-4"),
        ("it is \N{MINUS SIGN}4", "-4"),
        ("**13**", "13"),
        ("$13$", "13"),
        ("1,234", "1,234"),
        ("3.0", "3.0"),
        ("<answer>7</answer> 9", "7"),
        (r"\boxed{7} and 9", "7"),
        ("The answer is 7\nChecking 9 of 10", "7"),
        ("the answer is 7. Wait. The answer is: 8", "8"),
        ("<think>12</think>13", "13"),
    ],
)
def test_the_last_number_of_the_answer_part_is_the_answer(text, answer):
    assert extract(text, "0") == (answer, "")


@pytest.mark.parametrize("text", ["", "none", "x2 y3", "The answer is seven (7 times I tried)\n<answer>seven</answer>"])
def test_no_number_where_the_answer_should_be_is_no_answer(text):
    assert extract(text, "0")[0] is None


@pytest.mark.parametrize("text", ["3/4", "2^5", "5km", "12th", "1:30", "The answer is 7 or 8", "1,23"])
def test_what_is_not_one_plain_number_is_wrong_rather_than_cut_to_fit(text):
    answer, problem = extract(text, "0")
    assert answer is not None
    assert problem


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from(["{}", "The answer is {}.", "so = {}\n", "<answer>{}</answer>", "({})"]),
)
def test_a_number_survives_its_surroundings(value, frame):
    answer, problem = extract(frame.format(value), "0")
    assert (answer, problem) == (str(value), "")


def test_correct_only_at_a_score_of_one(sums):
    item = sums[0]
    assert grade(item, f"The answer is {item.answer}.").verdict == Outcome.CORRECT
    assert grade(item, f"{item.answer} {int(item.gold) + 1}").verdict == Outcome.WRONG
    partial = grade(item, f"{item.answer}.5")
    assert partial.verdict == Outcome.WRONG
    assert partial.extracted == f"{item.answer}.5"
    assert grade(item, "no idea").verdict == Outcome.NO_ANSWER


def test_an_item_that_the_installed_package_does_not_generate_cannot_be_judged(sums):
    item = sums[0]
    changed = type(item)(**{**item.as_dict(), "answer": "999"})
    assert grade(changed, "999").verdict == Outcome.INFRA_ERROR


def test_text_answers_are_the_marked_part_or_the_last_line():
    assert extract("thinking\nABBA", "XYZ") == ("ABBA", "")
    assert extract("<answer>ABBA</answer>\nthanks", "XYZ") == ("ABBA", "")
    assert extract("1 2\n3 4\n", "1 2\n3 5") == ("1 2\n3 4", "")
    assert extract("  \n", "XYZ")[0] is None


def test_every_task_whose_scorer_evaluates_answers_as_code_is_refused():
    from reasoning_gym.factory import DATASETS

    evaluates = re.compile(r"(?<![\w.])(?:eval|exec)\(|\bparse_expr\(|\bsympify\(")
    found = set()
    for task, (dataset, _config) in DATASETS.items():
        if "score_answer" in vars(dataset) and evaluates.search(inspect.getsource(dataset.score_answer)):
            found.add(task)
    assert found
    assert found <= UNSAFE_TASKS
