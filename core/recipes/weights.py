"""Analyses that make weights: ``extrapolate`` along the line through a run's checkpoints, and ``export`` of one checkpoint.

Defaults of an extrapolation are the paper's guidelines (appendix E.1): the first anchor at 20 to 30 % of the steps, the second
the last checkpoint, and beta chosen on validation items.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from core.recipes.base import BatchSize, Block, Length, false_is_null
from core.recipes.sources import HOLDOUT, SuiteName

WeightsName = Literal["extrapolate", "export"]
WEIGHTS: tuple[str, ...] = ("extrapolate", "export")

DEFAULT_BETAS = (1.25, 1.5, 2.0, 3.0)
FIRST_ANCHOR = 0.25
"""Where the first anchor lies by default, as a share of the second's step: the middle of the paper's 20 to 30 %."""

StepNumber = Annotated[int, Field(ge=0, le=1_000_000)]
Beta = Annotated[float, Field(ge=0, le=1000)]


class SweepEvaluation(Block):
    """How the points of a sweep are compared, greedily and with the run's own prompt.

    ``items`` items of ``suite`` choose (null: half of it); the rest, or all of ``confirm`` where that is another suite,
    confirm the choice against the second anchor and take no part in it.
    """

    suite: SuiteName = HOLDOUT
    items: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    confirm: SuiteName = Field(default_factory=lambda data: data.get("suite", HOLDOUT))
    max_completion_length: Length | None = None
    batch_size: BatchSize = 64


class Extrapolation(Block):
    """Points on the line through checkpoints ``a`` and ``b`` (steps of the run), by ``betas`` or by ``target_steps``.

    ``a`` null is the checkpoint nearest to a quarter of ``b``'s step, ``b`` null the last. beta 0 is ``a``, 1 is ``b``.
    ``least_squares`` fits every weight's line through all checkpoints from ``a`` to ``b``. With ``evaluate`` the best point is
    chosen and confirmed, and it alone is kept unless ``keep`` is all; with ``evaluate`` false every point is kept.
    """

    a: StepNumber | None = None
    b: StepNumber | None = None
    target_steps: Annotated[tuple[StepNumber, ...], Field(strict=False, min_length=1, max_length=64)] | None = None
    betas: Annotated[tuple[Beta, ...], Field(strict=False, max_length=64)] = Field(
        default_factory=lambda data: DEFAULT_BETAS if data.get("target_steps") is None else ()
    )
    fit: Literal["two_point", "least_squares"] = "two_point"
    skip_norms: bool = False
    evaluate: Annotated[SweepEvaluation | None, BeforeValidator(false_is_null)] = SweepEvaluation()
    keep: Literal["chosen", "all"] = Field(
        default_factory=lambda data: "all" if data.get("evaluate") is None else "chosen"
    )


class Export(Block):
    """One checkpoint of the run in another form: ``hf`` (bf16 safetensors), ``gguf``, or ``adapter`` (LoRA, by ``rank``).

    ``dtype`` is that of the written weights. ``records`` stored greedy answers are asked again through the result.
    """

    step: StepNumber
    format: Literal["hf", "gguf", "adapter"] = "hf"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    rank: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default_factory=lambda data: 16 if data.get("format") == "adapter" else None
    )
    records: Annotated[int, Field(ge=0, le=10_000)] = 20


def weights_problems(
    name: str, extrapolation: Extrapolation | None, export: Export | None, *, alone: bool, probed: bool
) -> Iterator[tuple[str, str, str]]:
    """Contradictions of one ``compute`` entry: (field within it, message, hint)."""
    for field, block, owner in (("extrapolation", extrapolation, "extrapolate"), ("export", export, "export")):
        if name != owner and block is not None:
            yield field, f"{name} takes no {field}", f"remove it, or set name to {owner}"
    if name not in WEIGHTS:
        return
    if probed:
        yield "probe", f"{name} scores no tokens", "remove probe"
    if not alone:
        yield (
            "name",
            f"{name} makes weights of one run, alone in its recipe",
            "post it as a recipe of its own that names a run",
        )
    if name == "extrapolate" and extrapolation is not None:
        yield from (("extrapolation." + field, message, hint) for field, message, hint in _line(extrapolation))
    if name == "export" and export is None:
        yield "export", "export does not say of which step", 'such as {"step": 100, "format": "gguf"}'
    if export is not None and export.rank is not None and export.format != "adapter":
        yield "export.rank", f"rank has no effect with format {export.format}", "remove it, or set format to adapter"


def _line(block: Extrapolation) -> Iterator[tuple[str, str, str]]:
    if block.target_steps is not None and block.betas:
        yield "betas", "betas and target_steps both say where to go", "give one of them"
    if block.target_steps is None and not block.betas:
        yield "betas", "there is no point to compute", f"such as {list(DEFAULT_BETAS)}, or target_steps"
    for field, values in (("betas", block.betas), ("target_steps", block.target_steps or ())):
        if len(set(values)) < len(values):
            yield field, "a point is named twice", "name each once"
    if block.a is not None and block.b is not None and block.a >= block.b:
        yield "a", f"a is step {block.a} and b step {block.b}", "a is the earlier checkpoint"
    if block.evaluate is None and block.keep == "chosen":
        yield "keep", "without evaluate nothing is chosen", "remove keep or set it to all"
