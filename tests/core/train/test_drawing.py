"""Which groups a step learns from, on scripted rewards."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from core.recipes import parse_recipe
from core.tasks.splits import PromptSampler
from core.train.drawing import Drawn, draw, in_pieces


def recipe_of(dynamic: int | None, *, prompts: int = 3, masked: bool = False) -> Any:
    return parse_recipe(
        {
            "kind": "train", "model": "tiny", "data": {"dataset": "file:a.jsonl", "holdout": 0}, "max_steps": 2,
            "algorithm": {"name": "grpo", "dynamic_sampling": dynamic, "mask_truncated": masked},
            "prompts_per_step": prompts, "num_generations": 2, "max_completion_length": 8, "device": {"kind": "cpu"},
        },
        known_models=["tiny"],
    )  # fmt: skip


def scripted(rewards: list[list[float | None]], asked: list[range], truncated: frozenset[int] = frozenset()) -> Any:
    """A sampler that gives prompt ``place`` the rewards of its group."""

    def sample(places: range) -> list[Any]:
        asked.append(places)
        return [
            SimpleNamespace(
                group=place,
                reward=SimpleNamespace(total=value),
                truncated=place in truncated,
                completion=SimpleNamespace(token_ids=(1,) * (1 + place)),
            )
            for place in places
            for value in rewards[place]
        ]

    return sample


@dataclass(frozen=True)
class SampleLike:
    """Enough of a sample to be renumbered."""

    group: int


FLAT, SPREAD = [0.0, 0.0], [0.0, 1.0]


def groups(samples: list[Any]) -> list[int]:
    return [sample.group for sample in samples[::2]]


def drawn(rewards: list[Any], dynamic: int | None, asked: list[range], **changes: Any) -> Drawn:
    truncated = changes.pop("truncated", frozenset())
    found = draw(recipe_of(dynamic, **changes), scripted(rewards, asked, truncated))
    assert found is not None
    return found


def test_without_the_option_every_prompt_is_used_once() -> None:
    asked: list[range] = []
    found = drawn([FLAT, SPREAD, FLAT], None, asked)
    assert asked == [range(3)]
    assert groups(found.used) == [0, 1, 2]
    assert found.spare == []


def test_groups_without_spread_are_replaced_by_further_prompts() -> None:
    asked: list[range] = []
    found = drawn([FLAT, SPREAD, FLAT, SPREAD, FLAT, SPREAD, SPREAD], 4, asked)
    assert asked == [range(3), range(3, 5), range(5, 6)]
    assert groups(found.used) == [1, 3, 5]
    assert groups(found.spare) == [0, 2, 4]
    assert found.curves() == {
        "dynamic_sampling/rounds": 3.0,
        "dynamic_sampling/kept_share": 0.5,
        "dynamic_sampling/informative": 3.0,
        # Group g has 2 (g + 1) tokens: 2 + 6 + 10 of 42 are left out.
        "dynamic_sampling/unused_tokens_share": pytest.approx(18 / 42),
    }


def test_when_the_rounds_are_spent_the_first_flat_groups_fill_up() -> None:
    asked: list[range] = []
    found = drawn([FLAT, FLAT, FLAT, SPREAD, FLAT, FLAT], 2, asked)
    assert asked == [range(3), range(3, 6)]
    assert groups(found.used) == [0, 1, 3]
    assert (found.informative, found.rounds) == (1, 2)


def test_a_group_whose_spread_is_masked_or_has_no_verdict_gives_no_gradient() -> None:
    asked: list[range] = []
    found = drawn([SPREAD, [None, 1.0], SPREAD, SPREAD], 2, asked, masked=True, truncated=frozenset({0}), prompts=2)
    assert groups(found.used) == [2, 3]


def test_a_step_is_sampled_in_pieces_and_can_be_ended_between_them() -> None:
    asked: list[range] = []

    def numbered_from_zero(places: range) -> list[Any]:
        asked.append(places)
        return [SampleLike(place - places.start) for place in places]

    assert in_pieces(range(5), 2, numbered_from_zero, lambda: len(asked) == 2) is None
    assert asked == [range(2), range(2, 4)]
    whole = in_pieces(range(3, 8), 2, numbered_from_zero, lambda: False)
    assert whole is not None
    assert [one.group for one in whole] == [3, 4, 5, 6, 7]


def test_a_steps_window_depends_on_seed_and_step_alone_and_no_prompt_comes_twice_in_an_epoch() -> None:
    recipe = recipe_of(3)
    assert recipe.prompts_reserved == 9
    again, sampler = PromptSampler(36, 7), PromptSampler(36, 7)
    windows = [sampler.prompts_for_step(step, recipe.prompts_reserved) for step in range(1, 5)]
    assert again.prompts_for_step(3, 9) == windows[2]
    assert sorted(index for window in windows for index in window) == list(range(36))
