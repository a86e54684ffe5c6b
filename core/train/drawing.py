"""Which groups a step learns from: its prompts sampled in pieces, and groups without spread replaced (dynamic sampling).

A step's prompts are a window of the epoch's order: ``prompts_per_step`` of them, times ``max_rounds`` where the recipe asks
for dynamic sampling. The window depends on seed and step alone, so a resumed step asks the same prompts; those of a window
that are not needed are not asked in this epoch. Nothing here computes advantages or updates weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from core.recipes import TrainRecipe
from core.rl.advantages import centered
from core.train.rollouts import Sample

# Samples of one prompt after another for the prompts at ``places`` of the window; None when the run was asked to end.
SampleGroups = Callable[[range], list[Sample] | None]


@dataclass(frozen=True)
class Drawn:
    """The samples of one step.

    ``used`` are the step's batch, ``spare`` what dynamic sampling left out, both group by group in the order of drawing.
    ``informative`` counts the groups in ``used`` that have spread, ``groups`` all that were drawn.
    """

    used: list[Sample]
    spare: list[Sample]
    rounds: int
    informative: int
    groups: int

    @property
    def everything(self) -> list[Sample]:
        """All samples, the used ones first."""
        return [*self.used, *self.spare]

    def curves(self) -> dict[str, float]:
        """What dynamic sampling cost; shares are of groups."""
        unused = sum(len(sample.completion.token_ids) for sample in self.spare)
        tokens = unused + sum(len(sample.completion.token_ids) for sample in self.used)
        return {
            "dynamic_sampling/rounds": float(self.rounds),
            "dynamic_sampling/kept_share": self.informative / self.groups,
            "dynamic_sampling/informative": float(self.informative),
            "dynamic_sampling/unused_tokens_share": unused / tokens if tokens else 0.0,
        }


def draw(recipe: TrainRecipe, sample: SampleGroups) -> Drawn | None:
    """Sample a step's groups; None when the run was asked to end meanwhile.

    With dynamic sampling each round draws one further prompt for every group that is still missing, until there are
    ``prompts_per_step`` informative groups or the rounds are spent; then the first groups without spread fill up, so that
    batch, mini-batches and schedule keep their sizes.
    """
    dynamic = recipe.algorithm.dynamic_sampling
    rounds_allowed = 1 if dynamic is None else dynamic.max_rounds
    groups: list[list[Sample]] = []
    informative: list[int] = []
    rounds = 0
    while rounds < rounds_allowed and len(informative) < recipe.prompts_per_step:
        wanted = range(len(groups), len(groups) + recipe.prompts_per_step - len(informative))
        samples = sample(wanted)
        if samples is None:
            return None
        fresh = _by_group(samples, recipe.num_generations)
        if dynamic is not None:
            informative += [place for place, group in zip(wanted, fresh, strict=True) if _informative(recipe, group)]
        groups += fresh
        rounds += 1
    kept = set(informative)
    flat = [place for place in range(len(groups)) if place not in kept]
    used = sorted([*informative, *flat[: recipe.prompts_per_step - len(informative)]])
    taken = set(used)
    left = [place for place in range(len(groups)) if place not in taken]
    return Drawn(
        [one for place in used for one in groups[place]],
        [one for place in left for one in groups[place]],
        rounds,
        len(informative),
        len(groups),
    )


def in_pieces(
    places: range, piece: int, sample: Callable[[range], list[Sample]], interrupted: Callable[[], bool]
) -> list[Sample] | None:
    """Sample the prompts at ``places``, ``piece`` at a time; None when asked to end between two pieces."""
    found: list[Sample] = []
    for start in range(0, len(places), piece):
        if start and interrupted():
            return None
        part = places[start : start + piece]
        # An engine numbers the groups of one call from 0.
        found += [replace(one, group=part[one.group]) for one in sample(part)]
    return found


def _informative(recipe: TrainRecipe, group: Sequence[Sample]) -> bool:
    """Whether the group gives a gradient: its rewards have spread, and not all of it is masked."""
    rewards = [sample.reward.total for sample in group]
    rewards_B = torch.tensor([float("nan") if reward is None else reward for reward in rewards], dtype=torch.float64)
    advantages_B = centered(rewards_B, torch.zeros(len(group), dtype=torch.long)).advantages_B
    in_loss = [not (recipe.algorithm.mask_truncated and sample.truncated) for sample in group]
    return any(counts and advantage != 0 for counts, advantage in zip(in_loss, advantages_B.tolist(), strict=True))


def _by_group(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    return [list(samples[start : start + size]) for start in range(0, len(samples), size)]
