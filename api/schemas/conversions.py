"""Bodies of exports."""

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.common import Body


class ExportWish(Body):
    """In which form a checkpoint is wanted; defaults are those of the recipe's ``export`` block."""

    format: Literal["hf", "gguf", "adapter"] = Field(
        default="hf", description="bf16 folder, one GGUF file, or a LoRA adapter to the run's start model"
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(default=None, description="of the written weights")
    rank: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = Field(
        default=None, description="of an adapter computed from the difference to the start model (16)"
    )
    records: Annotated[int, Field(strict=True, ge=0, le=10_000)] | None = Field(
        default=None, description="stored greedy answers that are asked again through the result (20)"
    )
