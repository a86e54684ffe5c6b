"""What is advised after a run ran out of memory, whether or not its plan had fitted."""

import pytest

from core.planning import Card, model_facts, plan
from core.planning.relief import relief
from core.recipes import TrainRecipe, parse_recipe

FACTS = model_facts("smollm2-135m")


def recipe(memory_gib: float, **changes: object) -> TrainRecipe:
    body = {
        "kind": "train",
        "model": "smollm2-135m",
        "data": {"dataset": "reasoning_gym:chain_sum", "holdout": 80, "options": {"size": 400}},
        "max_steps": 4,
        "prompts_per_step": 16,
        "num_generations": 8,
        "max_completion_length": 512,
        "device": {"kind": "cuda", "memory_gib": memory_gib},
    }
    made = parse_recipe(body | changes)
    assert isinstance(made, TrainRecipe)
    return made


def test_a_plan_that_had_fitted_is_made_again_for_a_tenth_less() -> None:
    wanted = recipe(16)
    card = Card(16, "card")
    planned = plan(wanted, card, facts=FACTS)
    assert planned.fits
    advice = relief(wanted, card, FACTS)
    assert advice is not None
    name, _, value = advice.partition(" ")
    assert name == "device.memory_gib"
    assert float(value) == pytest.approx(0.9 * planned.peak_gib, abs=0.01)
    assert plan(recipe(float(value)), card, facts=FACTS).peak_gib < planned.peak_gib


def test_a_plan_that_had_not_fitted_gives_its_own_change() -> None:
    wanted = recipe(2.5)
    card = Card(2.5, "card")
    planned = plan(wanted, card, facts=FACTS)
    assert not planned.fits
    assert relief(wanted, card, FACTS) == planned.smallest_change


def test_where_smaller_batches_are_not_enough_another_field_is_named() -> None:
    card = Card(40, "card")
    wanted = recipe(40, micro_batch_tokens=540_000)
    assert plan(wanted, card, facts=FACTS).fits
    advice = relief(wanted, card, FACTS)
    assert advice is not None
    assert not advice.startswith("device.memory_gib")
