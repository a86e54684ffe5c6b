"""Evaluation on the line through two checkpoints' logits: which suites are asked of whom, and the engine for it.

Asking and storing are the job's, as for any model. Every point of the line and every companion arm is an evaluation of its own
with the same items and the same random streams, so that any two of them can be compared item by item.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.engines.base import EngineError
from core.engines.extrapolated_serving import ServedLine, open_line
from core.engines.models import ModelError
from core.engines.references import ModelSource
from core.engines.vllm_launch import EngineDiedError, EngineStartError
from core.evals.engines import evaluation_setting, too_long
from core.evals.suites import Suite
from core.jobs import RunContext, UserError
from core.recipes import EvalRecipe
from core.recipes.extrapolation import Extrapolation, line_reference


def companions(suites: Sequence[Suite], line: Extrapolation | None) -> list[Suite]:
    """The sampled suites at every companion temperature: what the later checkpoint is asked beside ``suites`` themselves."""
    temperatures = () if line is None else line.temperatures or ()
    return [
        replace(suite, params=replace(suite.params, temperature=temperature))
        for suite in suites
        if suite.mode == "sampled"
        for temperature in temperatures
        if temperature != suite.params.temperature
    ]


def points(a: ModelSource, b: ModelSource, line: Extrapolation) -> dict[float, ModelSource]:
    """Return what each alpha is called in the record; there is no file whose hash it could have."""
    if a.reference == b.reference:
        raise UserError(
            "no_line", f"extrapolation.a and extrapolation.b both mean {a.reference}; name two different checkpoints"
        )
    return {
        alpha: replace(b, reference=line_reference(a.reference, b.reference, alpha), sha256=None)
        for alpha in line.alpha
    }


def open_line_for_evaluation(
    context: RunContext, recipe: EvalRecipe, a: ModelSource, b: ModelSource, alpha: float, *, scratch: Path
) -> ServedLine:
    """Open the recipe's engine on the line; vLLM's combined folder is written below ``scratch``."""
    setting = evaluation_setting(context, recipe, b.folder)
    try:
        return open_line(
            setting.name,
            a,
            b,
            alpha,
            dtype=setting.dtype,
            device=setting.device,
            sizes=setting.sizes,
            scratch=scratch,
        )
    except (EngineStartError, EngineDiedError):
        raise
    except ModelError as problem:
        raise UserError("unusable_line", str(problem)) from problem
    except EngineError as problem:
        raise too_long(problem) from problem
