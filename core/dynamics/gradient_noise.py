"""The analysis `gradient_noise` of a train run: its stored samples at its own checkpoints, and its updates (paper: 5.2).

At every checkpoint the groups of the step that follows are taken: they were sampled from exactly these weights. The theorem's
direction v_R is the mean gradient of the log-probability of right responses to the first step, at the start weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.dynamics.collect import collect
from core.dynamics.gradients import (
    Coordinates,
    Sampled,
    alignment,
    autocorrelation,
    group_gradient,
    leave_one_out,
    signal_to_noise,
)
from core.dynamics.gram import PathGram, lag_one
from core.dynamics.scoring import checkpoint_model
from core.dynamics.tables import Analysed, rows_as_columns
from core.dynamics.target import Target
from core.dynamics.tensor_file import Array
from core.dynamics.trajectory import Trajectory
from core.jobs import RunContext, UserError
from core.recipes import AnalysisRecipe, TrainRecipe
from core.recipes.analysis import ComputeSpec
from core.rl.objective import Objective
from core.store import prompts, rollouts
from core.store.models import Rollout
from core.streams import stream

_PAGE = 200
_LAGS = 10
_LIKELIHOOD = Objective(kind="token", aggregation="seq_mean_token_sum_norm", norm_length=1.0)
"""With advantage 1 and on-policy its gradient is that of -log pi of the whole response, the mean over responses."""

Report = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class _Groups:
    """The samples of one step by group, in order."""

    groups: list[list[Rollout]]
    prompt_ids: dict[str, tuple[int, ...]]


def gradient_noise(
    context: RunContext, recipe: AnalysisRecipe, target: Target, spec: ComputeSpec, progress: Report
) -> Analysed:
    """Compute the analysis; raises :class:`UserError` for runs without samples or of a kind that has no advantages."""
    trained = target.trained
    if trained is None or trained.algorithm.supervised or trained.lora is not None:
        raise UserError(
            "no_groups", f"{target.label} has no groups with advantages over all weights; name a run of an RL algorithm"
        )
    with Trajectory.open(target.points) as trajectory:
        sums = collect(
            trajectory,
            seed=recipe.seed,
            threshold=spec.threshold,
            sample=None,
            on_tensor=lambda done, total: progress(done, total, "tensors"),
        )
        path = PathGram(trajectory.steps, sums.gram_KK)
    at_points = _Gradients(context, recipe, target, trained, spec.groups).measure(progress)
    return _document(path, at_points, _factors(context, target.run_id), recipe.seed, spec.groups)


class _Gradients:
    """Group gradients at the checkpoints of one run, each compared with v_R."""

    def __init__(
        self, context: RunContext, recipe: AnalysisRecipe, target: Target, trained: TrainRecipe, groups: int
    ) -> None:
        self._context = context
        self._seed = recipe.seed
        self._target = target
        self._trained = trained
        self._groups = groups
        self._device = torch.device("cuda" if context.device["kind"] == "cuda" else "cpu")
        self._coordinates: Coordinates | None = None
        self._direction_N: Tensor | None = None

    def measure(self, progress: Report) -> list[dict[str, Any]]:
        found = []
        points = self._target.points
        for at, point in enumerate(points):
            progress(at, len(points), "checkpoints")
            samples = _samples(self._context, self._target.run_id, point.step + 1)
            if samples.groups:
                found.append(self._at(at, samples))
        if not found:
            raise UserError("no_samples", f"{self._target.label} has no stored samples after any of its checkpoints")
        return found

    def _at(self, at: int, samples: _Groups) -> dict[str, Any]:
        point = self._target.points[at]
        with checkpoint_model(point, torch.float32, self._device) as model:
            model.requires_grad_(True)
            if self._coordinates is None:
                self._coordinates = Coordinates(model, self._seed)
            coordinates = self._coordinates
            if at == 0:
                self._direction_N = self._right_direction(model, samples)
            gradients = []
            for group in self._drawn(samples.groups, point.step):
                sequences = [self._sequence(row, samples) for row in group]
                if any(one.counts and one.advantage for one in sequences):
                    group_gradient(model, sequences, self._objective(), temperature=self._trained.temperature)
                    gradients.append(coordinates.read(model))
            del model
        return self._numbers(point.step, gradients, shares_samples=at == 0)

    def _numbers(self, step: int, gradients: Sequence[Tensor], *, shares_samples: bool) -> dict[str, Any]:
        row: dict[str, Any] = {"step": step, "groups_with_spread": len(gradients)}
        if not gradients:
            return row | signal_to_noise(np.zeros((0, 0))) | {"cosine": None, "chance": None, "shares_samples": False}
        stacked_JN = torch.stack(list(gradients)).double()
        gram_JJ = (stacked_JN @ stacked_JN.T).numpy()
        row |= signal_to_noise(gram_JJ)
        if self._direction_N is None:
            return row | {"cosine": None, "chance": None, "shares_samples": False}
        direction_N = self._direction_N.double()
        found = alignment(gram_JJ, (stacked_JN @ direction_N).numpy(), float(direction_N.norm()), self._seed)
        return row | found | {"shares_samples": shares_samples}

    def _right_direction(self, model: Any, samples: _Groups) -> Tensor | None:
        """v_R from the right responses to the first step; None when there was none."""
        right = [row for group in samples.groups for row in group if row.verdict == "correct"]
        limit = self._groups * self._trained.num_generations
        chosen = stream(self._seed, "gradients", "right").sample(right, min(limit, len(right)))
        if not chosen or self._coordinates is None:
            return None
        sequences = [Sampled(samples.prompt_ids[row.prompt_sha256], tuple(row.token_ids), 1.0) for row in chosen]
        group_gradient(model, sequences, _LIKELIHOOD, temperature=self._trained.temperature)
        return self._coordinates.read(model)

    def _drawn(self, groups: list[list[Rollout]], step: int) -> list[list[Rollout]]:
        if len(groups) <= self._groups:
            return groups
        return stream(self._seed, "gradients", "groups", step).sample(groups, self._groups)

    def _sequence(self, row: Rollout, samples: _Groups) -> Sampled:
        masked = self._trained.algorithm.mask_truncated and row.finish_reason == "length"
        counts = row.reward is not None and row.advantage is not None and not masked
        prompt = samples.prompt_ids[row.prompt_sha256]
        return Sampled(prompt, tuple(row.token_ids), row.advantage or 0.0, counts)

    def _objective(self) -> Objective:
        """The run's own reduction; clipping does nothing at ratio 1, and KL and entropy terms are left out."""
        algorithm = self._trained.algorithm
        return Objective(
            kind="sequence" if algorithm.name == "gspo" else "token",
            aggregation=algorithm.aggregation,
            norm_length=algorithm.norm_length,
        )


def _samples(context: RunContext, run_id: str, step: int) -> _Groups:
    groups: dict[int, list[Rollout]] = {}
    for row in _rows(context, run_id, step):
        if row.used:
            groups.setdefault(row.group_index, []).append(row)
    hashes = {row.prompt_sha256 for group in groups.values() for row in group}
    with context.db.read() as session:
        known = prompts.get_many(session, hashes)
    return _Groups(list(groups.values()), {sha: tuple(row.token_ids) for sha, row in known.items()})


def _rows(context: RunContext, run_id: str, step: int | None) -> list[Rollout]:
    found: list[Rollout] = []
    after: str | None = None
    while True:
        with context.db.read() as session:
            page = rollouts.page(session, run_id, after=after, limit=_PAGE, step=step)
            found += page.items
        if not page.has_more:
            return found
        after = page.next


def _factors(context: RunContext, run_id: str) -> list[dict[str, Any]]:
    """The theorem's factor p / sigma = sqrt(p / (1 - p)) at every step, p the share of right samples."""
    right: dict[int, list[bool]] = {}
    for row in _rows(context, run_id, None):
        if row.verdict in ("correct", "wrong", "no_answer"):
            right.setdefault(row.step, []).append(row.verdict == "correct")
    found = []
    for step, verdicts in sorted(right.items()):
        p = sum(verdicts) / len(verdicts)
        found.append({"step": step, "p": p, "factor": None if p == 1 else float(np.sqrt(p / (1 - p)))})
    return found


def _document(
    path: PathGram, at_points: list[dict[str, Any]], factors: list[dict[str, Any]], seed: int, groups: int
) -> Analysed:
    increments_II: Array = path.increments
    others = leave_one_out(increments_II, seed)
    updates = [
        {"from": low, "to": high, **one} for low, high, one in zip(path.steps, path.steps[1:], others, strict=False)
    ]
    snr = [row["snr_of_the_mean"] for row in at_points]
    cosines = [row["cosine"] for row in at_points]
    above = sum(1 for row in others if row["cosine"] is not None and row["cosine"] > (row["chance"] or 0.0))
    fresh = [row for row in at_points if row["cosine"] is not None and not row["shares_samples"]]
    aligned = sum(1 for row in fresh if row["cosine"] > row["chance"])
    result = {
        "statement": _statement(others, above, fresh, aligned),
        "groups": groups,
        "gradients": at_points,
        "updates": updates,
        "lag_1": lag_one(path),
        "autocorrelation": autocorrelation(increments_II, _LAGS),
        "factor": factors,
        "note": "the cosine at the first checkpoint shares its samples with v_R and is left out of the count",
        "unit_of_claim": "run",
        "curves": {
            "leave-one-out": _curve(
                "Each update against all others", "cosine", list(path.steps[1:]),
                {"cosine": [row["cosine"] for row in others], "chance (95 %)": [row["chance"] for row in others]},
            ),
            "alignment": _curve(
                "The gradient against v_R", "cosine", [row["step"] for row in at_points],
                {"cosine": cosines, "chance (95 %)": [row["chance"] for row in at_points]},
            ),
            "signal-to-noise": _curve(
                "Signal to noise of the mean group gradient", "ratio", [row["step"] for row in at_points],
                {"signal to noise": snr},
            ),
            "factor": _curve(
                "The theorem's factor p / sigma", "", [row["step"] for row in factors],
                {"p / sigma": [row["factor"] for row in factors]},
            ),
        },
    }  # fmt: skip
    return Analysed(result, {"gradients": rows_as_columns(at_points), "updates": rows_as_columns(updates)})


def _curve(title: str, unit: str, steps: list[int], series: dict[str, list[float | None]]) -> dict[str, Any]:
    return {"title": title, "unit": unit, "steps": steps, "series": series}


def _statement(
    others: Sequence[dict[str, float | None]], above: int, fresh: Sequence[dict[str, Any]], aligned: int
) -> str:
    known = [row["cosine"] for row in others if row["cosine"] is not None]
    parts = [
        f"{above} of {len(known)} updates point along the others beyond chance (95 % line); the median cosine is "
        f"{float(np.median(known)):.3f}."
        if known
        else "No weight changed between the checkpoints."
    ]
    parts.append(
        f"At {aligned} of {len(fresh)} later checkpoints the gradient points along v_R beyond chance; the median cosine is "
        f"{float(np.median([row['cosine'] for row in fresh])):.3f}."
        if fresh
        else "The gradient cannot be compared with v_R: no right response of the start weights, or no later checkpoint."
    )
    parts.append("One run is one observation: claim nothing before other seeds agree.")
    return " ".join(parts)
