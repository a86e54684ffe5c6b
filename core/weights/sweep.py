"""Asks the points of a line: one live model takes the weights of each in turn, and its engine answers greedily.

Settings are those of the train run: prompt, engine, dtype and the length of its looks, so answers compare with its looks.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from core.engines.base import NonFiniteLogitsError, SamplingParams
from core.engines.lines import FolderWeights, Weights
from core.engines.models import ModelError, load_model, load_tokenizer, named_weights, stop_token_ids, text_decoder
from core.engines.references import ModelSource
from core.evals.engines import open_for_training, plan_training
from core.evals.job import heldout_items
from core.evals.rendering import Renderer
from core.evals.stored import Asked, Evaluator, Scores, scores_of
from core.jobs import RunContext, UserError
from core.recipes import TrainRecipe
from core.recipes.sources import HOLDOUT
from core.recipes.weights import SweepEvaluation
from core.store import evaluations
from core.streams import stream
from core.tasks.items import Item, ItemSet
from core.tasks.pool import VerifierPool
from core.tasks.sources import load_suite_items
from core.tasks.verifiers.gold import check_golds
from core.weights.making import Interrupted
from core.weights.points import Line, Target

CHOOSE, CONFIRM = "candidate", "confirm"


@dataclass(frozen=True)
class Draws:
    """The items that choose and those that confirm: never one in both."""

    choose: ItemSet
    confirm: ItemSet


def draws_of(
    context: RunContext, block: SweepEvaluation, trained: TrainRecipe, source: ModelSource, seed: int
) -> Draws:
    """Draw the items; raises :class:`UserError` where a suite is too small to be divided."""

    def items_of(suite: str) -> ItemSet:
        if suite != HOLDOUT:
            return load_suite_items(suite, context.settings.data_dir)
        held = heldout_items(context, source, trained)
        if held is None or not len(held):
            raise UserError("no_holdout", f"run {source.run_id} held no items out; name a suite to evaluate on")
        return held

    pool = items_of(block.suite)
    order = list(range(len(pool)))
    stream(seed, "sweep", block.suite).shuffle(order)
    same = block.confirm == block.suite
    count = block.items if block.items is not None else len(pool) // 2 if same else len(pool)
    if count < 1 or count > len(pool) - same:
        raise UserError(
            "too_few_items",
            f"suite {block.suite} has {len(pool)} items, so {count} cannot choose"
            + (" and leave others to confirm" if same else "")
            + "; lower evaluate.items or name another suite",
        )
    chosen = sorted(order[:count])
    confirming = _subset(pool, sorted(order[count:])) if same else items_of(block.confirm)
    return Draws(_subset(pool, chosen), confirming)


def _subset(pool: ItemSet, indices: Sequence[int]) -> ItemSet:
    return pool.subset([pool[index] for index in indices], name=pool.name, split=pool.split)


@dataclass
class Sweep:
    """One live model on the line of a run. Build with :func:`open_sweep`; ``close`` lets the engine go."""

    context: RunContext
    line: Line
    evaluator: Evaluator
    params: SamplingParams
    batch_size: int
    seed: int
    _weights: dict[str, torch.Tensor]
    _loaded: str = ""
    _asked: dict[tuple[str, str], Scores | None] = field(default_factory=dict)

    def ask(self, target: Target, purpose: str, items: ItemSet) -> Scores | None:
        """Scores of one point; None where its weights give no finite logits. Raises :class:`Interrupted`."""
        with ExitStack() as stack:
            return self._scores(f"beta-{target.beta:g}", purpose, items, lambda: self.line.at(target, stack))

    def ask_folder(self, name: str, folder: Any, purpose: str, items: ItemSet) -> Scores | None:
        """The same for a checkpoint beside the line."""
        with FolderWeights(folder) as weights:
            return self._scores(name, purpose, items, lambda: weights)

    def close(self) -> None:
        """Let go of the engine."""
        self.evaluator.engine.close()

    def _scores(self, name: str, purpose: str, items: ItemSet, weights: Callable[[], Weights]) -> Scores | None:
        if (name, purpose) not in self._asked:
            known = self._known(name, purpose)
            if known is None:
                self._become(name, weights)
                known = self._answers(name, purpose, items)
            self._asked[name, purpose] = known
        return self._asked[name, purpose]

    def _become(self, name: str, weights: Callable[[], Weights]) -> None:
        if self._loaded == name:
            return
        computed = weights()
        with torch.no_grad():
            for key, tensor in self._weights.items():
                tensor.copy_(computed[key])
        self.evaluator.engine.update_weights()
        self._loaded = name

    def _reference(self, name: str) -> str:
        return f"run:{self.context.run_id}/{name}"

    def _known(self, name: str, purpose: str) -> Scores | None:
        with self.context.db.read() as session:
            for row in evaluations.list_for_run(session, self.context.run_id, purpose=purpose):
                if row.model_ref == self._reference(name) and row.status == "finished":
                    return scores_of(evaluations.verdicts(session, row.id))
        return None

    def _answers(self, name: str, purpose: str, items: ItemSet) -> Scores | None:
        try:
            answered = self.evaluator.ask(
                Asked(
                    suite=items.name,
                    split=items.split,
                    dataset_hash=items.sha256,
                    verifier=items.verifier,
                    items=items.items,
                    params=self.params,
                    purpose=purpose,
                    model_ref=self._reference(name),
                    checkpoint_sha256=None,
                    batch_size=self.batch_size,
                    seed=self.seed,
                )
            )
        except NonFiniteLogitsError:
            with self.context.db.fenced(self.context.fence) as session:
                evaluations.discard_unfinished(session, self.context.fence)
            return None
        if answered is None:
            raise Interrupted
        with self.context.db.fenced(self.context.fence) as session:
            self.evaluator.close(session, answered)
        return answered.scores


def open_sweep(
    context: RunContext, line: Line, block: SweepEvaluation, trained: TrainRecipe, *, pool: VerifierPool, seed: int
) -> Sweep:
    """Load the later anchor and open the run's engine on it."""
    cuda = context.device["kind"] == "cuda"
    length = block.max_completion_length or (trained.looks and trained.looks.max_completion_length)
    length = length or trained.max_completion_length
    changes: dict[str, Any] = {"max_completion_length": length, "looks": None, "regrounding": None}
    if not cuda:
        changes |= {"dtype": "float32", "engine": "transformers"}
    recipe = trained.model_copy(update=changes)
    plan = plan_training(context, recipe, line.b.folder)
    device = torch.device("cuda" if cuda else "cpu")
    try:
        dtype = torch.float32 if recipe.dtype == "float32" else torch.bfloat16
        model = load_model(line.b.folder, dtype, device)
    except ModelError as problem:
        raise UserError("unusable_model", str(problem)) from problem
    tokenizer = load_tokenizer(line.b.folder)
    engine = open_for_training(plan, model, tokenizer, line.b.folder)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=length,
        stop_token_ids=stop_token_ids(model, tokenizer),
        stop=tuple(trained.prompt.stop),
    )
    renderer = Renderer(tokenizer, trained.prompt)
    evaluator = Evaluator(context, engine, renderer, text_decoder(tokenizer), pool)
    weights = {name: tensor for name, tensor in named_weights(model).items() if tensor.is_floating_point()}
    return Sweep(context, line, evaluator, params, block.batch_size, seed, weights)


def check_items(draws: Draws, evaluator: Evaluator, limit: int, pool: VerifierPool) -> None:
    """Every item must be gradable and fit the run's ``max_prompt_length``."""
    items: list[Item] = [*draws.choose.items, *draws.confirm.items]
    for one in (draws.choose, draws.confirm):
        check_golds(one, pool)
    for item in items:
        length = len(evaluator.render(item).token_ids)
        if length > limit:
            raise UserError(
                "prompt_too_long",
                f"item {item.id} has a prompt of {length} tokens, above the run's max_prompt_length {limit}",
            )
