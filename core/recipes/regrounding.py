"""The `regrounding` block of a train recipe: real steps alternating with jumps along the line that they drew.

Which steps begin and end a cycle is decided here, so that the trainer, the checks and the documents agree. What a jump does
to the weights is `core.train.regrounding`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from core.recipes.base import Block
from core.recipes.errors import Problem

N = Annotated[int, Field(ge=0, le=1_000_000)]
DEFAULT_VALIDATION = 200


def _around(data: dict[str, Any]) -> tuple[int, ...]:
    """Half, once and twice ``n``."""
    n = data.get("n", 0)
    return tuple(sorted({max(1, n // 2), n, 2 * n} - {0})) if data.get("adaptive") and n else ()


class Regrounding(Block):
    """Alternate ``m`` real steps with a linear extrapolation worth ``n``, beginning after step ``after``.

    With ``adaptive`` every jump tries the ``candidates`` (and 0, which stays where it is) on half of ``validation`` items
    drawn from the training data, and takes the best that the other half does not show damaged.
    """

    m: Annotated[int, Field(ge=1, le=1_000_000)]
    n: N
    after: N = 0
    moments: Literal["keep", "reset"] = "keep"
    skip_norms: bool = False
    adaptive: bool = False
    candidates: Annotated[tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...], Field(strict=False, max_length=16)] = (
        Field(default_factory=_around)
    )
    validation: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default_factory=lambda data: DEFAULT_VALIDATION if data.get("adaptive") else None
    )

    def origin(self, begins_at: int) -> int:
        """The step whose weights begin the first cycle; a fork begins one of its own with the weights it starts from."""
        return max(self.after, begins_at)

    def jumps_after(self, step: int, begins_at: int = 0) -> bool:
        """Whether a cycle ends with ``step``: every ``m`` steps from the origin on, the run's last step included."""
        origin = self.origin(begins_at)
        return step > origin and (step - origin) % self.m == 0


def regrounding_problems(
    block: Regrounding, *, max_steps: int, lora: bool
) -> Iterator[tuple[Problem, tuple[str, ...]]]:
    """Contradictions of the block, each with the fields it rests on besides its own."""
    if block.after + block.m > max_steps:
        yield (
            Problem(
                "regrounding.after",
                f"after step {block.after} and {block.m} real steps the {max_steps} steps are over",
                f"after + m at most {max_steps}",
            ),
            ("regrounding.m", "max_steps"),
        )
    if lora:
        yield (
            Problem(
                "regrounding",
                "adapters are trained as two factors, and a line through their product leaves the rank that they have",
                "remove lora or regrounding; checkpoints of an adapter run can be extrapolated by an analysis",
            ),
            ("lora",),
        )
    if not block.adaptive:
        for name, used in (("candidates", bool(block.candidates)), ("validation", block.validation is not None)):
            if used:
                yield (
                    Problem(
                        f"regrounding.{name}",
                        f"{name} has no effect without adaptive",
                        "set adaptive to true or remove it",
                    ),
                    ("regrounding.adaptive",),
                )
    elif not block.candidates:
        yield (
            Problem(
                "regrounding.candidates",
                "there is nothing to choose from",
                "name one or more n to try beside 0, such as [10, 20, 40], or an n above 0",
            ),
            ("regrounding.adaptive", "regrounding.n"),
        )
    elif len(set(block.candidates)) < len(block.candidates):
        yield (
            Problem("regrounding.candidates", "a candidate is named twice", "name each n once"),
            ("regrounding.adaptive",),
        )
    if block.adaptive and block.validation is None:
        yield (
            Problem(
                "regrounding.validation",
                "adaptive needs validation items",
                f"a number of items, such as {DEFAULT_VALIDATION}",
            ),
            ("regrounding.adaptive",),
        )
