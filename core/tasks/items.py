"""Items: one prompt with its gold answer or tests, and sets of them with a content hash.

It reads nothing from disk (see :mod:`core.tasks.sources`) and grades nothing (see :mod:`core.tasks.verifiers`).
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_DOMAIN = b"driftline/items/1\n"


class ItemError(ValueError):
    """Items that cannot be used; the message names where, which field, what is allowed and how to mend it."""


@dataclass(frozen=True)
class Item:
    """One prompt of a suite or training set.

    ``answer`` is the gold answer as text, ``tests`` the object that replaces it for program and instruction items;
    exactly one of them is set. ``verifier`` names the grader. ``meta`` is the source's own information.
    """

    id: str
    prompt: str
    answer: str | None
    verifier: str
    source: str = ""
    tests: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gold(self) -> str:
        """The gold answer as records keep it; items with tests have none, so this is the empty string."""
        return self.answer if self.answer is not None else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the item as plain JSON values."""
        return {
            "id": self.id,
            "prompt": self.prompt,
            "answer": self.answer,
            "verifier": self.verifier,
            "source": self.source,
            "tests": None if self.tests is None else dict(self.tests),
            "meta": dict(self.meta),
        }


@dataclass(frozen=True)
class ItemSet:
    """Items in a fixed order with the hash of their content.

    ``generated`` is true for tasks drawn from a generator, whose prompts may repeat; ``verifier`` is the grader that all
    items share.
    """

    items: tuple[Item, ...]
    name: str
    verifier: str
    split: str = "train"
    generated: bool = False
    sha256: str = ""

    def __post_init__(self) -> None:
        repeated = _first_repeated([item.id for item in self.items])
        if repeated is not None:
            raise ItemError(f"{self.name}: two items have the id {repeated!r}; ids must be unique within a set")
        if not self.sha256:
            object.__setattr__(self, "sha256", items_hash(self.items))

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]

    def subset(self, items: Sequence[Item], *, name: str, split: str) -> "ItemSet":
        """Return the set of the given items of this set, under another name, with its own hash."""
        return ItemSet(tuple(items), name, self.verifier, split=split, generated=self.generated)


def cluster_of(item: Item) -> str | None:
    """What the item shares with others (a source text, one template), as its ``meta.cluster`` says; None when it stands alone.

    Items of one cluster are not independent, and standard errors must know it.
    """
    name = item.meta.get("cluster")
    return None if name is None else str(name)[:255]


def items_hash(items: Sequence[Item]) -> str:
    """SHA-256 (hex) over the items' canonical JSON lines, in order, with a domain tag.

    Canonical means: keys sorted, no spaces, ASCII escapes. Order counts, because sampling and looks go by position.
    """
    digest = hashlib.sha256(_DOMAIN)
    for item in items:
        line = json.dumps(item.as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def normalised_prompt(prompt: str) -> str:
    """The form under which two prompts count as the same: NFKC, case folded, every run of white space one space.

    Signs and digits stay, since they are all that tells generated arithmetic apart.
    """
    return " ".join(unicodedata.normalize("NFKC", prompt).casefold().split())


def _first_repeated(ids: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for identifier in ids:
        if identifier in seen:
            return identifier
        seen.add(identifier)
    return None
