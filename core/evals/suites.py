"""From a recipe's suite block to items and sampling parameters.

It loads items and checks sizes; it renders, samples and stores nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.engines.base import SamplingParams
from core.recipes.catalogue import SUITES
from core.recipes.evaluation import SuiteSpec
from core.streams import stream
from core.tasks.items import ItemError, ItemSet
from core.tasks.sources import load_items, load_suite_items

HOLDOUT = "holdout"


@dataclass(frozen=True)
class Suite:
    """What one evaluation asks: the items, how many completions of each, and how they are sampled."""

    name: str
    items: ItemSet
    samples: int
    params: SamplingParams

    @property
    def mode(self) -> Literal["greedy", "sampled"]:
        """Greedy at temperature 0, else sampled."""
        return "greedy" if self.params.temperature == 0 else "sampled"


def resolve_suite(
    spec: SuiteSpec | str,
    *,
    data_dir: Path | None,
    seed: int,
    max_tokens: int,
    stop: tuple[str, ...] = (),
    holdout: ItemSet | None = None,
) -> Suite:
    """Return the suite that a recipe's block (or bare name) means.

    ``holdout`` is the run's own held-out set, which the name "holdout" stands for. ``spec.items`` takes that many items,
    drawn from the stream ("suite", name) and kept in their order. Raises :class:`ItemError` naming the suite when its
    items are missing, too few, or when greedy decoding is asked for several samples.
    """
    block = SuiteSpec(suite=spec) if isinstance(spec, str) else spec
    if block.temperature == 0 and block.n > 1:
        raise ItemError(
            f"suite {block.suite}: n is {block.n} at temperature 0; greedy answers are all equal, so leave n at 1"
        )
    params = SamplingParams(temperature=block.temperature, top_p=block.top_p, max_tokens=max_tokens, stop=stop)
    return Suite(block.suite, _chosen(_items(block, data_dir, seed, holdout), block, seed), block.n, params)


def _items(block: SuiteSpec, data_dir: Path | None, seed: int, holdout: ItemSet | None) -> ItemSet:
    if block.suite == HOLDOUT:
        if holdout is None:
            raise ItemError("suite 'holdout' is a train run's own held-out items, and this evaluation has no such run")
        return holdout
    if block.suite in SUITES and block.split == SUITES[block.suite].split:
        return load_suite_items(block.suite, data_dir)
    return load_items(block.suite, block.split, block.options, data_dir, seed=seed)


def _chosen(items: ItemSet, block: SuiteSpec, seed: int) -> ItemSet:
    if block.items is None or block.items == len(items):
        return items
    if block.items > len(items):
        raise ItemError(f"suite {block.suite}: items is {block.items}, but it has {len(items)}; lower items")
    indices = sorted(stream(seed, "suite", block.suite).sample(range(len(items)), block.items))
    return items.subset([items[index] for index in indices], name=items.name, split=items.split)
