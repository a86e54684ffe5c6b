"""The evaluation job: one model, and those it is compared with, on every suite of the recipe.

Each pair of model and suite is one stored evaluation; a later attempt keeps those that were finished. Comparisons are made on
request from the stored records, so nothing here compares.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.orm import Session

from core.engines.base import NonFiniteLogitsError
from core.engines.manifest import OPTIMIZER, DamagedCheckpointError, verify_checkpoint
from core.engines.models import ModelError, text_decoder
from core.engines.prompts import PromptError
from core.engines.references import ModelSource, find_model, start_model
from core.evals.engines import open_for_evaluation
from core.evals.line import companions, open_line_for_evaluation, points
from core.evals.memory import out_of_memory_explained
from core.evals.regrade import run_regrade
from core.evals.rendering import Renderer
from core.evals.stored import Asked, Evaluator
from core.evals.suites import HOLDOUT as HOLDOUT_SUITE
from core.evals.suites import Suite, resolve_suite
from core.jobs import Outcome, RunContext, UserError
from core.prespec.environment import HELDOUT, environment_of
from core.recipes import EvalRecipe, TrainRecipe, load_recipe
from core.recipes.base import Prompt
from core.recipes.extrapolation import Extrapolation
from core.store import evaluations, prespecs, runs
from core.tasks.items import ItemError, ItemSet
from core.tasks.pool import VerifierPool
from core.tasks.sources import load_items
from core.tasks.splits import split_holdout
from core.tasks.verifiers.gold import check_golds

BASE = "base"


@dataclass(frozen=True)
class _Plan:
    """What is asked of whom. ``trained`` is the recipe of the run whose checkpoint is evaluated, if it is one."""

    models: tuple[ModelSource, ...]
    suites: tuple[Suite, ...]
    prompt: Prompt


def run_evaluation(context: RunContext, pool: VerifierPool | None = None) -> Outcome:
    """Run one attempt of an evaluation run to its outcome. ``pool`` stays the caller's; None opens one for this attempt."""
    recipe = context.recipe
    if not isinstance(recipe, EvalRecipe):
        raise TypeError(f"run {context.run_id} is of kind {recipe.kind}, not eval")
    with contextlib.nullcontext(pool) if pool else VerifierPool() as grading, out_of_memory_explained(context, recipe):
        if recipe.regrade is not None:
            return run_regrade(context, recipe.regrade, grading)
        return _run(context, recipe, grading)


def _run(context: RunContext, recipe: EvalRecipe, pool: VerifierPool) -> Outcome:
    with context.db.fenced(context.fence) as session:
        evaluations.discard_unfinished(session, context.fence)
        runs.progress(session, context.fence, phase="prepare", done=None, total=None, unit=None)
    try:
        return _ask_all(context, recipe, pool)
    except ItemError as problem:
        raise UserError("unusable_data", str(problem)) from problem
    except PromptError as problem:
        raise UserError("unusable_prompt", str(problem)) from problem
    except ModelError as problem:
        raise UserError("unknown_model", str(problem)) from problem
    except NonFiniteLogitsError as problem:
        raise UserError("nonfinite_logits", str(problem)) from problem


def _ask_all(context: RunContext, recipe: EvalRecipe, pool: VerifierPool) -> Outcome:
    plan = _plan(context, recipe)
    for suite in plan.suites:
        check_golds(suite.items, pool)
    beside = companions(plan.suites, recipe.extrapolation)
    for place, source in enumerate(plan.models):
        suites = (*plan.suites, *beside) if place == 0 else plan.suites
        ended = _evaluate_model(context, recipe, plan, source, suites=suites, pool=pool)
        if ended is not None:
            return ended
    count = len(plan.models) * len(plan.suites) + len(beside)
    if recipe.extrapolation is not None:
        ended = _evaluate_line(context, recipe, plan, recipe.extrapolation, pool)
        if ended is not None:
            return ended
        count += len(recipe.extrapolation.alpha) * len(plan.suites)
    return Outcome("succeeded", f"{count} evaluations finished")


def _plan(context: RunContext, recipe: EvalRecipe) -> _Plan:
    model = _find(context, recipe.model)
    with context.db.read() as session:
        trained = _trained(session, model)
        others = list(_others(session, recipe, model, trained))
    prompt = recipe.prompt or (trained.prompt if trained else Prompt())
    asks_holdout = any(spec.suite == HOLDOUT_SUITE for spec in recipe.suites)
    holdout = heldout_items(context, model, trained) if asks_holdout else None
    suites = tuple(
        resolve_suite(
            spec,
            data_dir=context.settings.data_dir,
            seed=recipe.seed,
            max_tokens=recipe.max_completion_length,
            stop=tuple(prompt.stop),
            holdout=holdout if spec.suite == HOLDOUT_SUITE else None,
        )
        for spec in recipe.suites
    )
    return _Plan((model, *(_find(context, other) for other in others)), suites, prompt)


def _find(context: RunContext, reference: str) -> ModelSource:
    """The weights that ``reference`` means, which are those that were written. Raises :class:`UserError` where they are not."""
    source = find_model(context.db, context.settings, context.fence, reference)
    if source.sha256 is None:
        return source
    try:
        # The optimizer's state is not asked for, and goes from a run at work while it trains.
        written = verify_checkpoint(source.folder, without={OPTIMIZER})
    except DamagedCheckpointError as problem:
        raise _damaged(source, str(problem)) from problem
    if written != source.sha256:
        raise _damaged(source, "its manifest is that of other weights")
    return source


def _damaged(source: ModelSource, why: str) -> UserError:
    message = f"the checkpoint {source.reference} is damaged: {why}; evaluate another step, or put its files back"
    return UserError("damaged_checkpoint", message)


def _others(session: Session, recipe: EvalRecipe, model: ModelSource, trained: TrainRecipe | None) -> Iterator[str]:
    """The models that the recipe's is against; "base" is what the evaluated run started from."""
    for other in recipe.against:
        if other != BASE:
            yield other
        elif trained is not None:  # a recipe that names "base" beside another kind of model was refused
            yield start_model(session, _run_id(model), trained.model)


def _trained(session: Session, model: ModelSource) -> TrainRecipe | None:
    """Return the recipe of the train run that ``model`` is a checkpoint of, None for any other model."""
    if model.sha256 is None:
        return None
    recipe = load_recipe(runs.get(session, _run_id(model)).recipe)
    return recipe if isinstance(recipe, TrainRecipe) else None


def _run_id(model: ModelSource) -> str:
    return model.run_id or model.reference.removeprefix("run:").partition("/")[0]


def heldout_items(context: RunContext, model: ModelSource, trained: TrainRecipe | None) -> ItemSet | None:
    """Draw the train run's held-out items again: the same seed gives the same items, as long as the data is the same."""
    if trained is None or trained.data.holdout == 0:
        return None
    data = trained.data
    items = load_items(data.dataset, data.split, data.options, context.settings.data_dir, seed=trained.seed)
    heldout = split_holdout(items, data.holdout, trained.seed).heldout
    with context.db.read() as session:
        run = runs.get(session, _run_id(model))
        stated = (
            environment_of(prespecs.get(session, run.prespecification_id).amendments)
            if run.prespecification_id
            else None
        )
    if stated is None or stated["data"][HELDOUT]["sha256"] != heldout.sha256:
        raise UserError(
            "data_changed",
            f"the held-out items of run {run.id}, drawn again from {data.dataset}, are not those that it held out; "
            "put the data back as it was, or leave out suite holdout",
        )
    return heldout


def _evaluate_model(
    context: RunContext,
    recipe: EvalRecipe,
    plan: _Plan,
    source: ModelSource,
    *,
    suites: Sequence[Suite],
    pool: VerifierPool,
) -> Outcome | None:
    left = _unfinished(context, source, suites)
    if not left:
        return None
    served = open_for_evaluation(context, recipe, source.folder)
    with contextlib.closing(served.engine):
        render, decode = Renderer(served.tokenizer, plan.prompt), text_decoder(served.tokenizer)
        evaluator = Evaluator(context, served.engine, render, decode, pool)
        return _ask_suites(context, recipe, left, source=source, evaluator=evaluator, stops=served.stop_token_ids)


def _evaluate_line(
    context: RunContext, recipe: EvalRecipe, plan: _Plan, line: Extrapolation, pool: VerifierPool
) -> Outcome | None:
    """Ask every point of the line; the two networks are loaded once."""
    a, b = _find(context, line.a), plan.models[0]
    found = points(a, b, line)
    left = {alpha: _unfinished(context, point, plan.suites) for alpha, point in found.items()}
    todo = [alpha for alpha, suites in left.items() if suites]
    if not todo:
        return None
    folder = context.settings.run_dir(context.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix="line-") as scratch:
        served = open_line_for_evaluation(context, recipe, a, b, todo[0], scratch=Path(scratch))
        with contextlib.closing(served.engine):
            render, decode = Renderer(served.tokenizer, plan.prompt), text_decoder(served.tokenizer)
            evaluator = Evaluator(context, served.engine, render, decode, pool)
            for alpha in todo:
                served.engine.set_alpha(alpha)
                ended = _ask_suites(
                    context,
                    recipe,
                    left[alpha],
                    source=found[alpha],
                    evaluator=evaluator,
                    stops=served.stop_token_ids,
                )
                if ended is not None:
                    return ended
    return None


def _unfinished(context: RunContext, source: ModelSource, suites: Sequence[Suite]) -> list[Suite]:
    """The suites that no attempt has asked ``source`` to the end."""
    with context.db.read() as session:
        rows = evaluations.list_for_run(session, context.run_id)
    done = {
        (row.model_ref, row.suite, row.dataset_hash, row.samples, row.params["temperature"], row.params["top_p"])
        for row in rows
        if row.status == "finished"
    }
    return [
        s
        for s in suites
        if (source.reference, s.name, s.items.sha256, s.samples, s.params.temperature, s.params.top_p) not in done
    ]


def _ask_suites(
    context: RunContext,
    recipe: EvalRecipe,
    left: Sequence[Suite],
    *,
    source: ModelSource,
    evaluator: Evaluator,
    stops: tuple[int, ...],
) -> Outcome | None:
    for suite in left:
        _check_lengths(suite, evaluator, recipe.max_prompt_length)
        answered = evaluator.ask(
            Asked(
                suite=suite.name,
                split=suite.items.split,
                dataset_hash=suite.items.sha256,
                verifier=suite.items.verifier,
                items=suite.items.items,
                params=replace(suite.params, stop_token_ids=stops),
                purpose="eval",
                model_ref=source.reference,
                checkpoint_sha256=source.sha256,
                batch_size=recipe.batch_size,
                seed=recipe.seed,
                samples=suite.samples,
            )
        )
        if answered is None:
            return _requested(context)
        with context.db.fenced(context.fence) as session:
            evaluator.close(session, answered)
    return None


def _check_lengths(suite: Suite, evaluator: Evaluator, limit: int) -> None:
    for item in suite.items:
        length = len(evaluator.render(item).token_ids)
        if length > limit:
            raise UserError(
                "prompt_too_long",
                f"item {item.id} of suite {suite.name} has a prompt of {length} tokens, above max_prompt_length {limit}; "
                f"raise max_prompt_length to {length}",
            )


def _requested(context: RunContext) -> Outcome:
    match context.control.requested:
        case "cancel":
            return Outcome("cancelled", "cancelled by request; finished evaluations stay")
        case "pause":
            return Outcome("paused", "paused by request")
        case _:
            return Outcome("interrupted", "the worker is shutting down")
