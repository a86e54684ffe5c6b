"""Held-out and training items, and which prompts each step trains on.

Held-out items are drawn first from a named stream, and training never sees their prompts. A held-out pool consists of
prompts that occur once, so no luck of the draw can leave a copy behind. Nothing here reads files or grades.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from core.streams import stream
from core.tasks.items import Item, ItemError, ItemSet, normalised_prompt


@dataclass(frozen=True)
class Split:
    """The two sets, and how many generated items were dropped to keep them apart and free of repeats.

    ``removed_heldout_copies`` counts training items whose prompt is a held-out one, ``removed_repeats`` training items
    whose prompt an earlier training item already has. Both are 0 for items read from files.
    """

    train: ItemSet
    heldout: ItemSet
    removed_heldout_copies: int = 0
    removed_repeats: int = 0


def split_holdout(items: ItemSet, holdout: int, seed: int) -> Split:
    """Draw ``holdout`` items with distinct prompts from the stream ("holdout",); the rest trains.

    Generated sets repeat prompts: held-out items are first occurrences, copies of them leave the training set and so do
    repeats within it, and both are counted. In sets read from files a held-out item is one whose normalised prompt occurs
    once. Raises :class:`ItemError` when there are too few distinct prompts, or none is left to train on.
    """
    if holdout < 0:
        raise ItemError(f"data.holdout is {holdout}; it must be 0 or more")
    keys = [normalised_prompt(item.prompt) for item in items]
    candidates = _first_occurrences(keys) if items.generated else _singletons(keys)
    if holdout > len(candidates):
        raise ItemError(
            f"data.holdout is {holdout}, but {items.name} has {len(candidates)} distinct prompts among {len(items)} items; "
            "lower data.holdout, or raise data.options.size or widen the task's options"
        )
    stream(seed, "holdout").shuffle(candidates)
    chosen = sorted(candidates[:holdout])
    held_keys = {keys[index] for index in chosen}
    train: list[int] = []
    copies = repeats = 0
    seen: set[str] = set()
    held = set(chosen)
    for index, key in enumerate(keys):
        if index in held:
            continue
        if key in held_keys:
            copies += 1
        elif items.generated and key in seen:
            repeats += 1
        else:
            seen.add(key)
            train.append(index)
    if not train:
        raise ItemError(
            f"data.holdout is {holdout} and takes every one of the {len(candidates)} distinct prompts of {items.name}; "
            "nothing is left to train on, so lower data.holdout"
        )
    return Split(
        train=items.subset([items[index] for index in train], name=items.name, split="train"),
        heldout=items.subset([items[index] for index in chosen], name=f"{items.name}/holdout", split="holdout"),
        removed_heldout_copies=copies,
        removed_repeats=repeats,
    )


class PromptSampler:
    """Which prompts a step uses: each prompt once per epoch, the order fixed by the seed, the cursor fixed by the step.

    Where a step straddles two epochs, the new epoch begins with prompts that the step does not hold yet, so no prompt
    appears twice in a step.
    """

    def __init__(self, n_prompts: int, seed: int) -> None:
        if n_prompts < 1:
            raise ItemError("there are no training prompts")
        self._n = n_prompts
        self._seed = seed
        self._orders: dict[int, list[list[int]]] = {}

    def prompts_for_step(self, step: int, n: int) -> list[int]:
        """Indices of the ``n`` prompts of ``step`` (counted from 1); depends on nothing but the arguments and the seed."""
        if step < 1:
            raise ValueError(f"step is {step}; steps are counted from 1")
        if not 1 <= n <= self._n:
            raise ItemError(
                f"prompts_per_step is {n}, but there are {self._n} training prompts; it must be between 1 and {self._n}"
                " (with dynamic sampling, times its rounds)"
            )
        first = (step - 1) * n
        return [self._order(position // self._n, n)[position % self._n] for position in range(first, first + n)]

    def _order(self, epoch: int, n: int) -> list[int]:
        """Order of one epoch; each depends on the tail of the one before, so they are built in turn and kept."""
        orders = self._orders.setdefault(n, [])
        while len(orders) <= epoch:
            orders.append(self._next_order(len(orders), n, orders[-1] if orders else []))
        return orders[epoch]

    def _next_order(self, epoch: int, n: int, previous: Sequence[int]) -> list[int]:
        order = list(range(self._n))
        stream(self._seed, "prompts", epoch).shuffle(order)
        taken = (epoch * self._n) % n  # prompts of the straddling step that the previous epoch already gave
        if taken == 0:
            return order
        tail = set(previous[-taken:])
        head = [index for index in order if index not in tail][: n - taken]
        chosen = set(head)
        return head + [index for index in order if index not in chosen]


@dataclass(frozen=True)
class Overlap:
    """Pairs (training id, held-out id) that share a long run of words."""

    pairs: tuple[tuple[str, str], ...]
    gram: int

    @property
    def warning(self) -> str | None:
        """One sentence naming the first few pairs, or None when there are none."""
        if not self.pairs:
            return None
        shown = ", ".join(f"{train} ~ {held}" for train, held in self.pairs[:5])
        more = f" and {len(self.pairs) - 5} more" if len(self.pairs) > 5 else ""
        return f"{len(self.pairs)} training items share {self.gram} words in a row with held-out items: {shown}{more}"


def check_overlap(train: Sequence[Item], heldout: Sequence[Item], *, gram: int = 20, common: float = 0.05) -> Overlap:
    """Refuse equal prompts and report shared runs of ``gram`` words.

    Raises :class:`ItemError` naming the ids when a normalised prompt is in both sets. Runs that more than ``common`` of all
    items contain (and more than two do) are the task's own wording and are ignored.
    """
    held_by_key = {normalised_prompt(item.prompt): item.id for item in heldout}
    equal = [(item.id, held_by_key[key]) for item in train if (key := normalised_prompt(item.prompt)) in held_by_key]
    if equal:
        shown = ", ".join(f"{left} = {right}" for left, right in equal[:5])
        raise ItemError(
            f"{len(equal)} training items have the prompt of a held-out item ({shown}); remove them from the training data "
            "or from the suite, since training on held-out prompts makes every look meaningless"
        )
    train_grams = [_grams(item.prompt, gram) for item in train]
    held_grams = [_grams(item.prompt, gram) for item in heldout]
    counts = Counter(one for grams in (*train_grams, *held_grams) for one in grams)
    limit = max(2, common * (len(train) + len(heldout)))
    owners: dict[tuple[str, ...], list[str]] = {}
    for item, grams in zip(heldout, held_grams, strict=True):
        for one in grams:
            if counts[one] <= limit:
                owners.setdefault(one, []).append(item.id)
    pairs = {
        (item.id, held)
        for item, grams in zip(train, train_grams, strict=True)
        for one in grams & owners.keys()
        for held in owners[one]
    }
    return Overlap(tuple(sorted(pairs)), gram)


def _grams(prompt: str, size: int) -> set[tuple[str, ...]]:
    words = normalised_prompt(prompt).split()
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def _first_occurrences(keys: Sequence[str]) -> list[int]:
    first: dict[str, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key, index)
    return sorted(first.values())


def _singletons(keys: Sequence[str]) -> list[int]:
    counts = Counter(keys)
    return [index for index, key in enumerate(keys) if counts[key] == 1]
