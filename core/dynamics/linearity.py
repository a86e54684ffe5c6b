"""Linearity in the weights: R2 of every weight's trajectory, and how much of it is beyond chance (paper: 4.1, B.1).

One pass over the checkpoints collects sums; everything else is arithmetic on them. The excess over a random walk is reported
first and the raw share second: a walk alone is "linear" for a quarter of its weights and more. Storing results and drawing
figures are `job` and `figures`.
"""

from typing import Any, Literal

import numpy as np

from core.dynamics import gram, nulls, statement
from core.dynamics.chance import FIGURE_BINS, chance, run_level
from core.dynamics.collect import OnTensor, Sums, Witnesses, collect
from core.dynamics.modules import Place
from core.dynamics.regression import BINS, R2Histogram, fit_lines
from core.dynamics.trajectory import Trajectory

_EXAMPLES = 16


def weight_linearity(
    trajectory: Trajectory,
    *,
    seed: int,
    threshold: float = 0.7,
    sample: int | None = None,
    drive: nulls.Drive | None = None,
    on_tensor: OnTensor = lambda done, total: None,
) -> dict[str, Any]:
    """Measure a trajectory and return the whole result as JSON-able values.

    Args:
        trajectory: K >= 4 open checkpoints.
        seed: of the sample, the examples and the nulls; equal seeds give equal results on every machine.
        threshold: R2 above it counts as linear.
        sample: number of weights drawn, evenly over all; None takes every weight.
        drive: the optimizer and schedule that trained the run, when known; its walk is then the null of the headline.
        on_tensor: called with (tensors done, tensors in all) after each; what it raises ends the pass.

    Raises:
        TrajectoryError: for damage that only reading shows.
    """
    sums = collect(trajectory, seed=seed, threshold=threshold, sample=sample, on_tensor=on_tensor)
    path = gram.PathGram(trajectory.steps, sums.gram_KK)
    result = {
        "trajectory": _trajectory_document(trajectory, sums, sample),
        "threshold": threshold,
        "r2": {**sums.overall.summary(), "quantile_resolution": 1 / BINS},
        "histogram": sums.overall.coarse(FIGURE_BINS),
        **chance(sums.overall, path, seed=seed, drive=drive, rounding=_rounding(trajectory, sums.witnesses)),
        "run_level": run_level(path, drifting=sums.drifting, kept=sums.overall.kept, seed=seed),
        "heat_map": _heat_map(sums.cells),
        "relative_change": sums.relative.document(),
        "tensors": sums.tensors,
        "examples": _examples(trajectory, sums.witnesses),
        "unit_of_claim": "run",
        "noun": "weights",
    }
    return {"statement": statement.of(result), **result}


def _trajectory_document(trajectory: Trajectory, sums: Sums, sample: int | None) -> dict[str, Any]:
    measured, kept = sums.overall.elements, sums.overall.kept
    return {
        "steps": list(trajectory.steps),
        "checkpoints": len(trajectory.steps),
        "jumps": [point.step for point in trajectory.points if point.jump],
        "weights": trajectory.elements,
        "sample": sample,
        "measured": measured,
        "kept": kept,
        "kept_share": kept / measured if measured else None,
        "constant": sums.overall.constant,
        "changed_at_the_end_share": sums.net_changed / measured if measured else None,
        "dtypes": trajectory.dtypes,
        "tied": list(trajectory.tied),
        "not_weights": list(trajectory.not_weights),
    }


def _rounding(trajectory: Trajectory, witnesses: Witnesses) -> nulls.Rounding | None:
    """How the folders round, when most weights are stored in a 16-bit format."""
    dtype = max(trajectory.dtypes, key=lambda name: trajectory.dtypes[name], default="F32")
    changed = witnesses.changed()
    if dtype not in ("BF16", "F16") or not changed:
        return None
    known: Literal["BF16", "F16"] = "BF16" if dtype == "BF16" else "F16"
    paths_KN = np.stack([witnesses.paths[at] for at in changed], axis=1)
    initial_M = np.array([witnesses.initial[at] for at in changed])
    return nulls.Rounding(known, initial_M, nulls.moving_share(paths_KN))


def _heat_map(cells: dict[Place, R2Histogram]) -> dict[str, Any]:
    """Rows are module types, columns the layers and last "Special"; each cell weighs its elements equally."""
    layers = sorted({place.layer for place in cells if place.layer is not None})
    in_layers = list(dict.fromkeys(place.module for place in cells if place.layer is not None))
    special = list(dict.fromkeys(place.module for place in cells if place.layer is None))
    modules = [*in_layers, *(name for name in special if name not in in_layers)]
    columns: list[int | None] = [*layers, None]
    grid = [[cells.get(Place(layer, module)) for layer in columns] for module in modules]
    return {
        "modules": modules,
        "columns": [*(str(layer) for layer in layers), "Special"],
        "mean_r2": [[cell.mean if cell else None for cell in row] for row in grid],
        "share_above": [[cell.share_above if cell else None for cell in row] for row in grid],
        "kept": [[cell.kept if cell else 0 for cell in row] for row in grid],
    }


def _examples(trajectory: Trajectory, witnesses: Witnesses) -> list[dict[str, Any]]:
    """Return evenly drawn trajectories of weights that changed, by name and flat index."""
    changed = sorted(witnesses.changed(), key=lambda at: (witnesses.names[at], witnesses.index[at]))
    shown = (
        [changed[place * len(changed) // _EXAMPLES] for place in range(_EXAMPLES)]
        if len(changed) > _EXAMPLES
        else changed
    )
    if not shown:
        return []
    fits = fit_lines(np.stack([witnesses.paths[at] for at in shown], axis=1), trajectory.steps)
    return [
        {
            "tensor": witnesses.names[at],
            "index": witnesses.index[at],
            "initial": witnesses.initial[at],
            "change": witnesses.paths[at].tolist(),
            "r2": float(fits.r2_N[number]),
        }
        for number, at in enumerate(shown)
    ]
