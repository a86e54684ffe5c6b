"""The analyses that run the checkpoints' models on probes: tokens, logits, activations, and the first-order terms.

It puts the pieces in order (probes, forward passes, measurement) and knows the recipe; what is measured is the pieces' own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from core.dynamics.activations import SAMPLE, activation_result, first_order_result, hidden_paths
from core.dynamics.probes import ProbeSequence, make_probes
from core.dynamics.tables import Analysed
from core.dynamics.target import Target, check_points
from core.dynamics.tokens import Quantity, probe_table, score_points, token_result
from core.dynamics.trajectory import MINIMUM, check_alike
from core.engines.models import load_tokenizer
from core.jobs import RunContext, UserError
from core.recipes import AnalysisRecipe
from core.recipes.analysis import ComputeSpec, Probe

Report = Callable[[int, int | None, str], None]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def analyse(
    context: RunContext, recipe: AnalysisRecipe, target: Target, spec: ComputeSpec, progress: Report
) -> Analysed:
    """Compute one analysis of outputs; raises :class:`UserError` or :class:`TrajectoryError` where it cannot be."""
    two = spec.name == "first_order"
    check_points(target.points, 2 if two else MINIMUM)
    check_alike((target.points[0], target.points[-1]) if two else target.points)
    device = torch.device("cuda" if context.device["kind"] == "cuda" else "cpu")
    probes = make_probes(
        context,
        target,
        spec.probe or Probe(),
        seed=recipe.seed,
        device=device,
        progress=lambda done, total: progress(done, total, "probes"),
    )
    if not probes:
        raise UserError("empty_probe", "every completion of the probe is empty; raise max_completion_length")
    job = _Job(recipe, target, spec, probes, device, lambda done, total: progress(done, total, "checkpoints"))
    match spec.name:
        case "token_linearity":
            analysed = job.tokens("logp")
        case "logit_linearity":
            analysed = job.tokens("logit")
        case "activation_linearity":
            analysed = job.activations()
        case "first_order":
            analysed = job.first_order()
        case other:
            raise ValueError(f"{other} is no analysis of outputs")
    shared = {"dtype": spec.dtype, "jumps": [point.step for point in target.points if point.jumped]}
    return Analysed(analysed.result | shared, {**analysed.tables, "probes": probe_table(probes)})


@dataclass(frozen=True)
class _Job:
    """What the analyses of outputs have in common."""

    recipe: AnalysisRecipe
    target: Target
    spec: ComputeSpec
    probes: list[ProbeSequence]
    device: torch.device
    progress: Callable[[int, int], None]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(point.step for point in self.target.points)

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.spec.dtype]

    def tokens(self, quantity: Quantity) -> Analysed:
        values = score_points(
            self.target.points, self.probes, dtype=self.dtype, device=self.device, progress=self.progress
        )
        result, tables = token_result(
            values[quantity],
            self.steps,
            self.probes,
            load_tokenizer(self.target.points[0].folder),
            noun="tokens" if quantity == "logp" else "logits",
            threshold=self.spec.threshold,
            seed=self.recipe.seed,
            drive=self.target.drive,
        )
        return Analysed(result, tables)

    def activations(self) -> Analysed:
        names, values_LKS = hidden_paths(
            self.target.points,
            self.probes,
            sample=self.spec.sample or SAMPLE,
            seed=self.recipe.seed,
            dtype=self.dtype,
            device=self.device,
            progress=self.progress,
        )
        return Analysed(
            activation_result(
                names,
                values_LKS,
                self.steps,
                threshold=self.spec.threshold,
                seed=self.recipe.seed,
                drive=self.target.drive,
            )
        )

    def first_order(self) -> Analysed:
        result, rows = first_order_result(
            self.target.points,
            self.probes,
            seed=self.recipe.seed,
            dtype=self.dtype,
            device=self.device,
            progress=self.progress,
        )
        return Analysed(result, {"modules": rows})
