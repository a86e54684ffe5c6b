"""The rewards block: shorthand, options of each term, own functions by name, the gate, and the pass-rate filter."""

from typing import Any

import pytest

from core.recipes import RecipeError, parse_recipe, recipe_hash, resolved
from core.recipes.rewards import own_function


def problem(train: dict[str, Any], **changes: Any) -> tuple[str, str, str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe({**train, **changes})
    return caught.value.param, caught.value.message, caught.value.hint


def test_a_number_stands_for_a_weight_and_defaults_are_written_down(train: dict[str, Any]) -> None:
    own = {"weight": 0.5, "arguments": {"most": 3}}
    recipe = parse_recipe(
        {**train, "rewards": {"math": 1, "length": 0.1, "format": 0, "random": 0, "file:a.py:f": own}}
    )
    assert resolved(recipe)["rewards"] == {
        "math": {"weight": 1.0},
        "length": {"weight": 0.1, "per": 1000, "free": 0},
        "format": {"weight": 0.0, "think": False},
        "random": {"weight": 0.0, "probability": 0.5},
        "file:a.py:f": own,
    }
    assert parse_recipe(resolved(recipe)) == recipe
    as_objects = parse_recipe({**train, "rewards": {"math": {"weight": 1.0}}})
    assert recipe_hash(as_objects) == recipe_hash(parse_recipe({**train, "rewards": {"math": 1}}))


@pytest.mark.parametrize(
    ("rewards", "place", "words"),
    [
        ({"math": {"weight": 1, "per": 10}}, "rewards", "math has no option 'per'"),
        ({"math": 1, "length": {"weight": 1, "think": True}}, "rewards", "length has no option 'think'"),
        ({"math": {"weigth": 1}}, "rewards.math.weight", "weight is missing"),
        ({"math": "1"}, "rewards.math", "'1' is no weight"),
        ({"math": 1, "file:../a.py:f": 1}, "rewards", "does not name a function"),
        ({"math": 1, "file:a.py": 1}, "rewards", "does not name a function"),
        ({"math": 1, "file:/etc/a.py:f": 1}, "rewards", "does not name a function"),
        ({"math": 1, "file:a.py:f": {"weight": 1, "sha256": "12"}}, "rewards.file:a.py:f.sha256", "not a SHA-256"),
    ],
)
def test_a_wrong_term_is_named(train: dict[str, Any], rewards: Any, place: str, words: str) -> None:
    param, message, _hint = problem(train, rewards=rewards)
    assert param == place
    assert words in message


def test_an_own_function_is_a_plain_file_and_a_function() -> None:
    assert own_function("file:my_reward.py:score") == ("my_reward.py", "score")
    assert [own_function(name) for name in ("math", "file:a.py:", "file:.a.py:f", "file:a.py:f g")] == [None] * 4


def test_a_gate_that_gates_nothing_is_refused(train: dict[str, Any]) -> None:
    assert problem(train, outcome_gate=True)[0] == "outcome_gate"
    assert parse_recipe({**train, "outcome_gate": True, "rewards": {"math": 1, "length": 0.1}}).outcome_gate


def test_a_pair_of_rates_stands_for_the_filter(train: dict[str, Any]) -> None:
    recipe = parse_recipe({**train, "data": {"dataset": "gsm8k", "pass_rate": [0.1, 0.9]}})
    assert resolved(recipe)["data"]["pass_rate"] == {"low": 0.1, "high": 0.9, "samples": 8}
    assert parse_recipe({**train, "data": {"dataset": "gsm8k", "pass_rate": False}}).data.pass_rate is None


@pytest.mark.parametrize("rates", [[0.1], [0.9, 0.1], [0.11, 0.12], [0.1, 1.1], {"low": 0.1}, "most"])
def test_a_filter_that_means_nothing_is_refused(train: dict[str, Any], rates: Any) -> None:
    param, _message, hint = problem(train, data={"dataset": "gsm8k", "pass_rate": rates})
    assert param.startswith("data.pass_rate")
    assert hint
