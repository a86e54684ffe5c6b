"""Reference solutions of items as token ids, and the random signs of noisy supervised learning.

What a solution is, the recipe's ``data.solution`` says. It is encoded without special tokens and ends with the tokenizer's
end-of-sequence token, which is learnt like every other token. Nothing here runs a model.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from core.recipes.algorithm import Algorithm
from core.streams import stream
from core.tasks.items import Item, ItemError, ItemSet

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SOLUTION, _ANSWER = "{solution}", "{answer}"


class Solutions:
    """Encodes the solutions of items, each once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        if tokenizer.eos_token_id is None:
            raise ItemError("the tokenizer has no end-of-sequence token, so a model cannot learn where a solution ends")
        self._tokenizer = tokenizer
        self._template = template
        self._done: dict[str, tuple[int, ...]] = {}

    def __call__(self, item: Item) -> tuple[int, ...]:
        """Token ids of the item's solution, the end token included."""
        if item.id not in self._done:
            ids = self._tokenizer(solution_text(item, self._template), add_special_tokens=False).input_ids
            self._done[item.id] = (*(int(token) for token in ids), int(self._tokenizer.eos_token_id))
        return self._done[item.id]


def template_of(items: ItemSet, wanted: str | None) -> str:
    """The recipe's text, or where it says nothing the items' ``meta.solution`` if all have one, else their answer.

    Raises :class:`ItemError` when some items have a solution and others do not: which to learn is not guessed.
    """
    if wanted is not None:
        return wanted
    having = [item for item in items if isinstance(item.meta.get("solution"), str)]
    if not having:
        return _ANSWER
    if len(having) == len(items):
        return _SOLUTION
    lacking = next(item for item in items if item not in having)
    raise ItemError(
        f"{len(having)} of {len(items)} items of {items.name} have meta.solution and {lacking.id} has none; set "
        f'data.solution to what all of them have, such as "{_ANSWER}"'
    )


def solution_text(item: Item, template: str) -> str:
    """``template`` with the item's texts put in; raises :class:`ItemError` naming the item and the place without a text."""

    def text(match: re.Match[str]) -> str:
        name = match[1]
        value = item.answer if name == "answer" else item.meta.get(name)
        if not isinstance(value, str) or not value.strip():
            known = [_ANSWER] if item.answer is not None else []
            known += [f"{{{key}}}" for key, other in item.meta.items() if isinstance(other, str) and other.strip()]
            raise ItemError(
                f"data.solution: item {item.id} has no text {match[0]}; it has {', '.join(known) or 'none'}"
            )
        return value

    filled = _PLACE.sub(text, template)
    if not filled.strip():
        raise ItemError(f"data.solution gives an empty text for item {item.id}")
    return filled


def noise_signs(
    algorithm: Algorithm, lengths: Sequence[int], ids: Sequence[str], *, seed: int, step: int
) -> list[Tensor]:
    """What each solution's token losses are multiplied by, a float64 tensor [T] each (the paper's C.3).

    ``sft`` gives ones. ``token`` noise draws a sign for every token, -1 with probability ``p``. ``sequence`` noise draws one
    sign for the solution and a cut c uniform on 0..T: the first c tokens have the sign, the others 0. The divisor is the
    caller's and stays the number of supervised tokens. Draws come from the stream ("noise", step, item id).
    """
    if algorithm.name == "sft":
        return [torch.ones(length, dtype=torch.float64) for length in lengths]
    p = algorithm.p or 0.0
    signs = []
    for length, item_id in zip(lengths, ids, strict=True):
        draws = stream(seed, "noise", step, item_id)
        if algorithm.noise == "token":
            values = [-1.0 if draws.random() < p else 1.0 for _ in range(length)]
        else:
            sign, cut = (-1.0 if draws.random() < p else 1.0), draws.randint(0, length)
            values = [sign] * cut + [0.0] * (length - cut)
        signs.append(torch.tensor(values, dtype=torch.float64))
    return signs
