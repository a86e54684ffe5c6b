"""What a train run needs before its first step: items split and checked, prompts rendered, golds verified.

Everything that can be wrong with the data is found here, before the base look, and named. No weights are touched.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from core.engines.prompts import PromptError
from core.evals.rendering import Renderer
from core.jobs import UserError
from core.recipes import TrainRecipe
from core.settings import Settings
from core.tasks.items import Item, ItemError, ItemSet
from core.tasks.pool import VerifierPool
from core.tasks.rewards import check_terms
from core.tasks.sources import load_items, load_suite_items
from core.tasks.splits import PromptSampler, Split, check_overlap, split_holdout
from core.tasks.validation import split_validation
from core.tasks.verifiers.gold import check_golds
from core.train.solutions import Solutions, template_of

HOLDOUT = "holdout"


@dataclass(frozen=True)
class Prepared:
    """The data of a run. ``suites`` holds the items of each suite of the looks, the held-out pool first if it is one.

    ``solve`` gives the token ids of an item's solution; None unless the algorithm is supervised.
    """

    train: ItemSet
    heldout: ItemSet
    suites: dict[str, ItemSet]
    sampler: PromptSampler
    render: Renderer
    warnings: tuple[str, ...]
    validation: ItemSet | None = None
    solve: Callable[[Item], tuple[int, ...]] | None = None


def prepare(
    recipe: TrainRecipe, settings: Settings, tokenizer: PreTrainedTokenizerBase, pool: VerifierPool
) -> Prepared:
    """Load, split, render and check the data; raises :class:`UserError` naming what to change."""
    try:
        return _prepare(recipe, settings, tokenizer, pool)
    except ItemError as problem:
        raise UserError("unusable_data", str(problem)) from problem
    except PromptError as problem:
        raise UserError("unusable_prompt", str(problem)) from problem


def _prepare(
    recipe: TrainRecipe, settings: Settings, tokenizer: PreTrainedTokenizerBase, pool: VerifierPool
) -> Prepared:
    items = load_items(recipe.data.dataset, recipe.data.split, recipe.data.options, settings.data_dir, seed=recipe.seed)
    split = split_holdout(items, recipe.data.holdout, recipe.seed)
    renderer = Renderer(tokenizer, recipe.prompt)
    train, long_ids = _fitting(split.train, renderer, recipe.max_prompt_length)
    train, solve, long_solutions = _solved(train, recipe, tokenizer)
    wanted = recipe.regrounding.validation if recipe.regrounding else None
    train, validation = (train, None) if wanted is None else split_validation(train, wanted, recipe.seed)
    names = recipe.looks.suites if recipe.looks else ()
    suites = {
        name: split.heldout if name == HOLDOUT else load_suite_items(name, settings.data_dir, seed=recipe.seed)
        for name in names
    }
    for name, suite in suites.items():
        _all_fit(name, suite, renderer, recipe.max_prompt_length)
    sampler = PromptSampler(len(train), recipe.seed)
    warnings = [*_overlap_warnings(train, suites), *_removal_warnings(split, long_ids, recipe.max_prompt_length)]
    warnings += _solution_warnings(long_solutions, recipe.max_completion_length)
    if not recipe.algorithm.supervised:
        asked = _asked(train, sampler, recipe)
        check_terms(recipe.rewards, asked)
        check_golds(asked, pool)
    for suite in suites.values():
        check_golds(suite, pool)
    if validation is not None:
        check_golds(validation, pool)
    return Prepared(train, split.heldout, suites, sampler, renderer, tuple(warnings), validation, solve)


def _fitting(items: ItemSet, renderer: Renderer, limit: int) -> tuple[ItemSet, list[str]]:
    """Return the items whose prompt fits, and the ids of those whose does not."""
    kept = [item for item in items if len(renderer(item).token_ids) <= limit]
    if not kept:
        raise ItemError(f"every prompt of {items.name} is longer than max_prompt_length {limit} tokens; raise it")
    ids = {item.id for item in kept}
    dropped = [item.id for item in items if item.id not in ids]
    return items.subset(kept, name=items.name, split=items.split) if dropped else items, dropped


def _solved(
    train: ItemSet, recipe: TrainRecipe, tokenizer: PreTrainedTokenizerBase
) -> tuple[ItemSet, Solutions | None, list[str]]:
    """Return the items whose solution fits, what encodes solutions, and the ids of those whose does not."""
    if not recipe.algorithm.supervised:
        return train, None, []
    solve = Solutions(tokenizer, template_of(train, recipe.data.solution))
    limit = recipe.max_completion_length
    kept = [item for item in train if len(solve(item)) <= limit]
    if not kept:
        raise ItemError(f"every solution of {train.name} is longer than max_completion_length {limit} tokens; raise it")
    ids = {item.id for item in kept}
    dropped = [item.id for item in train if item.id not in ids]
    return train.subset(kept, name=train.name, split=train.split) if dropped else train, solve, dropped


def _solution_warnings(long_ids: Sequence[str], limit: int) -> list[str]:
    if not long_ids:
        return []
    shown = ", ".join(long_ids[:5])
    return [f"{len(long_ids)} training items have solutions of more than {limit} tokens and were dropped: {shown}"]


def _all_fit(name: str, items: ItemSet, renderer: Renderer, limit: int) -> None:
    """Held-out items are never dropped silently: a suite without its longest prompts is another suite."""
    for item in items:
        length = len(renderer(item).token_ids)
        if length > limit:
            raise ItemError(
                f"item {item.id} of suite {name} has a prompt of {length} tokens, above max_prompt_length {limit}; "
                f"raise max_prompt_length to {length}"
            )


def _overlap_warnings(train: ItemSet, suites: dict[str, ItemSet]) -> Iterable[str]:
    for name, suite in suites.items():
        warning = check_overlap(train.items, suite.items).warning
        if warning:
            yield f"{name}: {warning}"


def _removal_warnings(split: Split, long_ids: Sequence[str], limit: int) -> Iterable[str]:
    if split.removed_heldout_copies:
        yield f"{split.removed_heldout_copies} generated training items had a held-out prompt and were removed"
    if split.removed_repeats:
        yield f"{split.removed_repeats} generated training items repeated an earlier prompt and were removed"
    if long_ids:
        shown = ", ".join(long_ids[:5])
        yield f"{len(long_ids)} training items have prompts of more than {limit} tokens and were dropped: {shown}"


def _asked(train: ItemSet, sampler: PromptSampler, recipe: TrainRecipe) -> list[Item]:
    """Return the training items that the run will ask, each once; the others' golds do not matter to it."""
    wanted = {
        index
        for step in range(1, recipe.max_steps + 1)
        for index in sampler.prompts_for_step(step, recipe.prompts_reserved)
    }
    return [train[index] for index in sorted(wanted)]
