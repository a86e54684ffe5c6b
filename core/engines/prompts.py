"""The one place where a prompt becomes token ids: training, evaluation and probes all use what is rendered here.

The chat template is applied once, to text, and the text is encoded once without special tokens being added again, so
there is exactly one BOS. Nothing is added silently: what the recipe does not ask for and the template does not contain
is not in the prompt. Length limits are the caller's business, and so is batching.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

# Stands in for a system text while the template's own layout is found out; no template or item contains it.
_MARKER = "driftlinesystemmarker"


class PromptError(ValueError):
    """A prompt cannot be rendered as asked; the message names the recipe's field and how to mend it."""


@dataclass(frozen=True)
class PromptSpec:
    """How an item's text is turned into a prompt: the recipe's ``prompt``.

    ``system`` None leaves the template its own default system text, "" means no system message at all, anything else is
    the system message. ``suffix`` is put directly after the item's text, ``prefill`` directly after the generation
    prompt, where it is part of the prompt and not of the completion. ``stop`` is handed to the engine by the caller.
    """

    system: str | None = None
    suffix: str = ""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as the model sees it (``token_ids``), for display (``text``), and its content hash.

    ``prefill`` is the end of ``text`` with which the answer already begins, as far as the recipe and not the template says so.
    """

    token_ids: tuple[int, ...]
    text: str
    sha256: str
    prefill: str = ""


def render(tokenizer: PreTrainedTokenizerBase, item_prompt: str, spec: PromptSpec) -> RenderedPrompt:
    """Render one item.

    With a chat template: system message (see :class:`PromptSpec`), one user message, generation prompt, prefill. Without
    one: system text and a blank line where there is a system text, then the item, suffix and prefill as plain text. A
    BOS comes first when the template writes one or when the tokenizer itself puts one before plain text, never twice.
    Raises :class:`PromptError` when the template refuses, or when the result is empty.
    """
    content = item_prompt + spec.suffix
    text = (_chat(tokenizer, content, spec) if tokenizer.chat_template else _plain(content, spec)) + spec.prefill
    ids, text = _with_one_bos(tokenizer, text)
    if not ids:
        raise PromptError("the rendered prompt is empty: the item has no text and the prompt adds none")
    return RenderedPrompt(ids, text, token_ids_sha256(ids), spec.prefill)


def token_ids_sha256(ids: Iterable[int]) -> str:
    """Return the hex sha256 that identifies a token sequence: of its ids as compact JSON under a domain tag."""
    compact = json.dumps([int(token) for token in ids], separators=(",", ":"))
    return hashlib.sha256(b"driftline/prompt/1\n" + compact.encode()).hexdigest()


def _plain(content: str, spec: PromptSpec) -> str:
    if spec.template_kwargs:
        names = ", ".join(sorted(spec.template_kwargs))
        raise PromptError(f"prompt.template_kwargs sets {names}, but this model has no chat template; remove them")
    return f"{spec.system}\n\n{content}" if spec.system else content


def _chat(tokenizer: PreTrainedTokenizerBase, content: str, spec: PromptSpec) -> str:
    user = {"role": "user", "content": content}
    if spec.system:
        return _apply(tokenizer, [{"role": "system", "content": spec.system}, user], spec)
    default = _apply(tokenizer, [user], spec)
    return default if spec.system is None else _without_system(tokenizer, default, user, spec)


def _without_system(tokenizer: PreTrainedTokenizerBase, default: str, user: dict[str, str], spec: PromptSpec) -> str:
    """Return the rendering without any system message, also for templates that insert a default one of their own.

    Next to a rendering with a marker as system text, a template without a default differs by an insertion only. One with
    a default differs by a replacement; then the system turn, rendered alone, is cut off the front of the marked text.
    """
    marker = {"role": "system", "content": _MARKER}
    try:
        marked = _apply(tokenizer, [marker, user], spec)
    except PromptError:
        return default
    if _is_insertion(default, marked):
        return default
    turn = _apply(tokenizer, [marker], spec, generation_prompt=False)
    if not marked.startswith(turn) or _MARKER not in turn:
        raise PromptError(
            'prompt.system is "" (no system message), but this model\'s template inserts a default one that cannot be '
            "separated; give a system text, or null for the template's default"
        )
    rest = marked.removeprefix(turn)
    bos = _bos(tokenizer)
    return bos + rest if bos and turn.startswith(bos) and not rest.startswith(bos) else rest


def _is_insertion(short: str, long: str) -> bool:
    """Whether ``long`` is ``short`` with one piece of text inserted somewhere."""
    if len(short) > len(long):
        return False
    prefix = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    return long.endswith(short[prefix:])


def _apply(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    spec: PromptSpec,
    *,
    generation_prompt: bool = True,
) -> str:
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation_prompt, **spec.template_kwargs
        )
    except TemplateError as error:
        roles = " and ".join(message["role"] for message in messages)
        raise PromptError(
            f"this model's chat template refuses a {roles} message: {error}; change prompt.system"
        ) from error
    assert isinstance(text, str)
    return text


def _bos(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.bos_token) if tokenizer.bos_token is not None else ""


def _with_one_bos(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[tuple[int, ...], str]:
    """Encode ``text``, which may already begin with BOS, so that BOS comes once if it comes at all."""
    ids = list(tokenizer(text, add_special_tokens=False).input_ids)
    bos_id = tokenizer.bos_token_id
    if bos_id is None:
        return tuple(ids), text
    if ids[:1] != [bos_id] and _adds_bos(tokenizer):
        return (bos_id, *ids), _bos(tokenizer) + text
    while ids[:2] == [bos_id, bos_id]:
        ids, text = ids[1:], text.removeprefix(_bos(tokenizer))
    return tuple(ids), text


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether this tokenizer puts a BOS before plain text: having a BOS token alone does not say that the model uses it."""
    return list(tokenizer("a").input_ids)[:1] == [tokenizer.bos_token_id]
