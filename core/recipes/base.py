"""The base of every recipe block and the small types that several blocks share.

Blocks are strict (no string becomes a number, no boolean an integer), frozen, and refuse fields they do not know. Shorthands
(a name or an integer instead of an object) are expanded before validation, so a block has one shape afterwards.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from core.recipes.errors import refuse

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=+-]*")
_RUN_ID = re.compile(r"(?:run:)?([0-9a-f]{4,12})")

Engine = Literal["auto", "transformers", "vllm"]
Dtype = Literal["float32", "bfloat16"]
Options = dict[str, JsonValue]


class Block(BaseModel):
    """One object of a recipe."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def expand(kind: type, key: str) -> Callable[[Any], Any]:
    """A before-validator: a bare value of type ``kind`` stands for ``{key: value}``; booleans never pass for integers."""

    def expanded(value: Any) -> Any:
        return {key: value} if isinstance(value, kind) and not isinstance(value, bool) else value

    return expanded


def false_is_null(value: Any) -> Any:
    """``false`` switches a block off, as ``null`` does; it never becomes a truthy string."""
    return None if value is False else value


def _one_line(text: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in text) or text != text.strip():
        raise refuse("the name has control characters or spaces at its ends", "one line of plain text")
    return text


def _tag(text: str) -> str:
    if not _TAG.fullmatch(text):
        raise refuse(f"{text!r} is not a tag", "letters, digits and . _ : / = + -, beginning with a letter or digit")
    return text


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise refuse(f"{', '.join(twice)} is written twice", "name each only once")
    return values


def _run_id(text: str) -> str:
    match = _RUN_ID.fullmatch(text)
    if match is None:
        raise refuse(
            f"{text!r} is not a run id", "4 to 12 lowercase hexadecimal digits, with or without run: before them"
        )
    return match[1]


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_one_line)]
Tags = Annotated[
    tuple[Annotated[str, Field(max_length=64), AfterValidator(_tag)], ...],
    Field(strict=False, max_length=32),
    AfterValidator(_distinct),
]
After = Annotated[
    tuple[Annotated[str, Field(max_length=64), AfterValidator(_run_id)], ...],
    Field(strict=False, max_length=32),
    AfterValidator(_distinct),
]
Priority = Annotated[int, Field(ge=-1000, le=1000)]
Seed = Annotated[int, Field(ge=0, le=2**53 - 1)]
Attempts = Annotated[int, Field(ge=1, le=100)]
BatchSize = Annotated[int, Field(ge=1, le=4096)]
Length = Annotated[int, Field(ge=1, le=1 << 20)]


class Prompt(Block):
    """How an item's text becomes a prompt. ``system`` null leaves the template's own default; "" asks for none."""

    system: str | None = None
    suffix: str = ""
    template_kwargs: Options = Field(default_factory=dict)
    prefill: str = ""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False, max_length=16)] = ()


class Device(Block):
    """What the recipe wants to run on. ``memory_gib`` is the card's memory, or the host's for ``kind: cpu`` (GiB)."""

    kind: Literal["cuda", "cpu"] = "cuda"
    memory_gib: Annotated[float, Field(gt=0, le=4096)] = Field(
        default_factory=lambda data: 8.0 if data.get("kind") == "cpu" else 24.0
    )
    count: Annotated[int, Field(ge=1, le=64)] = 1


def default_dtype(data: dict[str, Any]) -> Dtype:
    """float32 on a CPU (bf16 is slow or wrong there), bfloat16 weights with fp32 masters on a card."""
    device = data.get("device")
    return "float32" if isinstance(device, Device) and device.kind == "cpu" else "bfloat16"
