"""Validation items of a train run, taken from its training items: choices are made on neither trained nor held-out ones.

The held-out pool is split off before (`splits`), which carries the damage stop and must not be chosen on.
"""

from collections import Counter

from core.streams import stream
from core.tasks.items import ItemError, ItemSet, normalised_prompt


def split_validation(train: ItemSet, count: int, seed: int) -> tuple[ItemSet, ItemSet]:
    """Take ``count`` items with prompts that occur once from the stream ("validation",); return the rest and them.

    Raises :class:`ItemError` when there are too few, or none is left to train on.
    """
    keys = Counter(normalised_prompt(item.prompt) for item in train)
    single = [index for index, item in enumerate(train) if keys[normalised_prompt(item.prompt)] == 1]
    if count > len(single) or count >= len(train):
        raise ItemError(
            f"regrounding.validation is {count}, but {train.name} has {len(single)} training items with prompts of their own, "
            "of which some must be left to train on; lower it, or hold out fewer"
        )
    stream(seed, "validation").shuffle(single)
    chosen = set(single[:count])
    kept = [item for index, item in enumerate(train) if index not in chosen]
    taken = [item for index, item in enumerate(train) if index in chosen]
    return (
        train.subset(kept, name=train.name, split=train.split),
        train.subset(taken, name=f"{train.name}/validation", split="validation"),
    )
