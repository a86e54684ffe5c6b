"""The `extrapolation` block of an eval recipe: decode from the line through the logits of two checkpoints.

Because a large alpha may do no more than sharpen the distribution, a sweep over alpha carries a sweep over the later
checkpoint's temperature (`docs/extrapolated-decoding.md`).
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from core.recipes.base import Block
from core.recipes.errors import refuse
from core.recipes.model_refs import ModelRef

COMPANION_TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
REFERENCE_LENGTH = 255
"""An evaluation's name of its model is at most so long."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


def _distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise refuse(f"{', '.join(f'{value:g}' for value in twice)} is listed twice", "list each value once")
    return values


Alpha = Annotated[float, Field(ge=-100, le=100)]
Temperature = Annotated[float, Field(gt=0, le=10)]


class Extrapolation(Block):
    """Logits ``lerp(a, b, alpha)``: 0 is a, 1 is b, above 1 goes beyond b. ``alpha`` is one number, or a list: a sweep.

    ``temperatures`` are those at which b itself answers the sampled suites as well; null means 0.2 to 1.0 for a sweep and none
    for a single alpha, and [] means none.
    """

    a: ModelRef
    b: ModelRef
    alpha: Annotated[
        tuple[Alpha, ...],
        Field(strict=False, min_length=1, max_length=32),
        BeforeValidator(_listed, json_schema_input_type=float | tuple[float, ...]),
        AfterValidator(_distinct),
    ]
    temperatures: (
        Annotated[tuple[Temperature, ...], Field(strict=False, max_length=32), AfterValidator(_distinct)] | None
    ) = None

    def reference(self, alpha: float) -> str:
        """How an evaluation at ``alpha`` names its model, for the references as written."""
        return line_reference(self.a, self.b, alpha)


def line_reference(a: str, b: str, alpha: float) -> str:
    """The name of the line from ``a`` through ``b`` at ``alpha``, such as ``lerp(run:4f2a/step-0,run:4f2a/step-100,1.5)``."""
    short = f"{alpha:g}"
    return f"lerp({a},{b},{short if float(short) == alpha else repr(alpha)})"
