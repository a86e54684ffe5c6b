"""Contradictions between fields that are each right by themselves.

Every check yields findings: a problem and the fields it rests on. No check stops another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from core.recipes.algorithm import algorithm_problems
from core.recipes.analysis import OF_RUNS, WITHOUT_PROBE, AnalysisRecipe
from core.recipes.catalogue import MODELS, VERIFIERS
from core.recipes.errors import Problem, allowed
from core.recipes.evaluation import EvalRecipe
from core.recipes.extrapolation import REFERENCE_LENGTH
from core.recipes.gym_tasks import PREFIX as GYM
from core.recipes.hub_data import PREFIX as HUB
from core.recipes.model_refs import is_run_ref
from core.recipes.regrounding import regrounding_problems
from core.recipes.resolution import stop_pool
from core.recipes.rewards import gated
from core.recipes.sources import HOLDOUT, dataset_items, option_faults, splits, suite_items, verifier
from core.recipes.supervised import supervised_problems
from core.recipes.train import DamageStop, Looks, TrainRecipe
from core.recipes.weights import weights_problems


@dataclass(frozen=True)
class Finding:
    """A problem, and the dotted fields it rests on: it means nothing when one of those is itself wrong."""

    problem: Problem
    needs: tuple[str, ...]


def findings(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> list[Finding]:
    """Every contradiction of ``recipe``."""
    match recipe:
        case TrainRecipe():
            return [
                *_batch(recipe),
                *_algorithm(recipe),
                *_lengths(recipe),
                *_data(recipe),
                *_rewards(recipe),
                *_pass_rate(recipe),
                *_looks(recipe),
                *_ends(recipe),
            ]
        case EvalRecipe():
            return [*_model(recipe), *_extrapolation(recipe), *_suites(recipe), *_against(recipe)]
        case AnalysisRecipe():
            return [*_trajectory(recipe), *_compute(recipe)]


def _finding(param: str, message: str, hint: str, *needs: str) -> Finding:
    return Finding(Problem(param, message, hint), (param, *needs))


def _batch(recipe: TrainRecipe) -> Iterator[Finding]:
    if recipe.num_generations < 2 and recipe.algorithm.needs_group:
        yield _finding(
            "num_generations",
            f"{recipe.algorithm.name} compares the samples of one prompt, so a group of one teaches nothing",
            "at least 2 (8 is usual), or algorithm reinforce_plus_plus without baseline",
            "algorithm.name",
            "algorithm.baseline",
        )
    if recipe.prompts_per_step % recipe.prompts_per_update:
        divisors = [n for n in range(1, recipe.prompts_per_step + 1) if recipe.prompts_per_step % n == 0]
        yield _finding(
            "prompts_per_update",
            f"{recipe.prompts_per_update} does not divide prompts_per_step {recipe.prompts_per_step}",
            f"allowed: {allowed(map(str, divisors[-12:]))}",
            "prompts_per_step",
        )
    updates = recipe.max_steps * max(1, recipe.updates_per_step)
    if recipe.warmup_updates > updates:
        yield _finding(
            "warmup_updates",
            f"{recipe.warmup_updates} warm-up updates are more than the {updates} updates of the whole run",
            f"at most {updates}",
            "max_steps",
            "prompts_per_step",
            "prompts_per_update",
        )
    if recipe.optimizer.momentum and recipe.optimizer.name != "sgd":
        yield _finding(
            "optimizer.momentum",
            f"momentum has no effect with {recipe.optimizer.name}",
            "remove it, set adam_beta1, or use sgd",
            "optimizer.name",
        )


def _algorithm(recipe: TrainRecipe) -> Iterator[Finding]:
    for problem in algorithm_problems(recipe.algorithm):
        yield Finding(problem, (problem.param, "algorithm.name", "algorithm.aggregation"))
    for problem in supervised_problems(recipe):
        yield Finding(problem, (problem.param, "algorithm.name"))


def _lengths(recipe: TrainRecipe) -> Iterator[Finding]:
    facts = MODELS.get(recipe.model)
    limit = facts.max_positions if facts else None
    total = recipe.max_prompt_length + recipe.max_completion_length
    if limit is not None and total > limit:
        yield _finding(
            "max_completion_length",
            f"max_prompt_length {recipe.max_prompt_length} + max_completion_length {recipe.max_completion_length} = {total} "
            f"is more than the {limit} positions of {recipe.model}",
            f"at most {max(1, limit - recipe.max_prompt_length)} with this max_prompt_length",
            "model",
            "max_prompt_length",
        )


def _data(recipe: TrainRecipe) -> Iterator[Finding]:
    data = recipe.data
    yield from _options(data.dataset, data.options, "data.options", "data.dataset")
    known = splits(data.dataset)
    if known is not None and data.split not in known:
        yield _finding(
            "data.split", f"{data.dataset} has no split {data.split!r}", f"allowed: {allowed(known)}", "data.dataset"
        )
    items = dataset_items(data.dataset, data.split, data.options)
    aside = data.holdout + ((recipe.regrounding.validation or 0) if recipe.regrounding else 0)
    if items is not None and items - aside < recipe.prompts_reserved:
        yield _finding(
            "data.holdout",
            f"{data.dataset} has {items} items; {aside} held out leave {max(0, items - aside)} "
            f"for steps of {recipe.prompts_reserved} prompts",
            "hold out fewer, take smaller steps"
            + (", or lower algorithm.dynamic_sampling" if recipe.algorithm.dynamic_sampling else "")
            + (", or raise data.options.size" if data.dataset.startswith(GYM) else ""),
            "data.dataset",
            "data.split",
            "data.options",
            "prompts_per_step",
            "algorithm.dynamic_sampling",
        )


def _options(name: str, options: Mapping[str, Any], place: str, *needs: str) -> Iterator[Finding]:
    for option, message, hint in option_faults(name, options):
        yield _finding(f"{place}.{option}", message, hint, *needs)


def _rewards(recipe: TrainRecipe) -> Iterator[Finding]:
    dataset = recipe.data.dataset
    own = verifier(dataset)
    graders = [term for term in recipe.rewards if term in VERIFIERS or term == "auto"]
    if own is not None:
        for term in graders:
            if term not in ("auto", own):
                yield _finding(
                    f"rewards.{term}",
                    f"the verifier {term} cannot grade {dataset}",
                    f"allowed: auto, {own}",
                    "data.dataset",
                )
        graders = [term for term in graders if term in ("auto", own)]
    if len(graders) > 1:
        yield _finding(
            f"rewards.{graders[1]}",
            f"{' and '.join(graders)} are one verifier counted twice: a data set's items have one verifier",
            "keep one of them",
            "data.dataset",
            f"rewards.{graders[0]}",
        )

    if recipe.outcome_gate and not any(gated(term) for term in recipe.rewards):
        yield _finding(
            "outcome_gate",
            "there is no term that it could gate: verifiers are the outcome itself",
            "remove outcome_gate, or add length, format, random or an own function",
            "rewards",
        )


def _pass_rate(recipe: TrainRecipe) -> Iterator[Finding]:
    wanted = recipe.data.pass_rate
    if wanted is None:
        return
    if wanted.low > wanted.high:
        yield _finding(
            "data.pass_rate",
            f"the lowest rate {wanted.low:g} is above the highest {wanted.high:g}",
            "write the lower one first: [0.1, 0.9]",
        )
    elif not any(wanted.low <= right / wanted.samples <= wanted.high for right in range(wanted.samples + 1)):
        yield _finding(
            "data.pass_rate",
            f"no rate that {wanted.samples} samples can give lies from {wanted.low:g} to {wanted.high:g}",
            "widen the range or raise samples",
        )


def _looks(recipe: TrainRecipe) -> Iterator[Finding]:
    looks, stop = recipe.looks, recipe.damage_stop
    if looks is None:
        if stop is not None:
            yield _finding(
                "damage_stop",
                "a damage stop is asked at looks, and this recipe has none",
                'add looks, such as {"every": 10}',
                "looks",
            )
        return
    if looks.every > recipe.max_steps:
        yield _finding(
            "looks.every",
            f"the first look would be at step {looks.every}, after the last step {recipe.max_steps}",
            f"at most {recipe.max_steps}",
            "max_steps",
        )
    if HOLDOUT in looks.suites and recipe.data.holdout == 0:
        yield _finding(
            "looks.suites",
            "the suite holdout is empty because data.holdout is 0",
            "hold items out or name another suite",
            "data.holdout",
        )
    twice = sorted({suite for suite in looks.suites if looks.suites.count(suite) > 1})
    if twice:
        yield _finding("looks.suites", f"{', '.join(twice)} is named twice", "name each suite once")
    for index, suite in enumerate(looks.suites):
        if suite.startswith(HUB):
            yield _finding(
                f"looks.suites.{index}",
                f"{suite} needs options, and looks name suites alone",
                "put the items into the operator's folder and name them file:NAME.jsonl, or ask the suite in an eval run",
            )
    yield from _draws(recipe, looks, stop)


def _draws(recipe: TrainRecipe, looks: Looks, stop: DamageStop | None) -> Iterator[Finding]:
    pool = stop_pool(recipe, looks)
    pool_fields = ("looks.suites", "data.holdout", "looks.m")
    if looks.m is not None and pool is not None and looks.m > pool:
        yield _finding(
            "looks.m", f"{looks.m} items cannot be drawn from a pool of {pool}", f"at most {pool}", *pool_fields
        )
        return
    if stop is not None and stop.rule == "eprocess" and looks.base_runs < 2:
        yield _finding("looks.base_runs", "eprocess needs at least two base runs", "2 or more", "damage_stop.rule")


def _ends(recipe: TrainRecipe) -> Iterator[Finding]:
    stop = recipe.stop
    if stop is not None and recipe.looks is None:
        for field in ("target", "patience"):
            if getattr(stop, field) is not None:
                yield _finding(
                    f"stop.{field}",
                    f"{field} is measured at looks, and this recipe has none",
                    "add looks or remove it",
                    "looks",
                )
    if recipe.regrounding is not None:
        for problem, needs in regrounding_problems(
            recipe.regrounding, max_steps=recipe.max_steps, lora=recipe.lora is not None
        ):
            yield Finding(problem, (problem.param, *needs))
    if recipe.lora is not None and recipe.optimizer.name == "adamw_offload":
        yield _finding(
            "optimizer",
            "adapters are small, so adamw_offload has nothing to offload",
            "use adamw",
            "lora",
            "optimizer.name",
        )


def _model(recipe: EvalRecipe) -> Iterator[Finding]:
    if not recipe.model:
        yield _finding("model", "model is missing", "add it, or an extrapolation between two models", "extrapolation")


def _extrapolation(recipe: EvalRecipe) -> Iterator[Finding]:
    line = recipe.extrapolation
    if line is None:
        return
    if recipe.model != line.b:
        yield _finding("model", "with extrapolation the model is its b", "remove model", "extrapolation.b")
    if line.a == line.b:
        yield _finding("extrapolation.a", "a and b are one model, so there is no line", "name two", "extrapolation.b")
    longest = max(len(line.reference(alpha)) for alpha in line.alpha)
    if longest > REFERENCE_LENGTH:
        yield _finding(
            "extrapolation.a", f"the names of a and b are too long together ({longest})", f"at most {REFERENCE_LENGTH}"
        )
    if line.temperatures and all(spec.temperature == 0 for spec in recipe.suites):
        yield _finding(
            "extrapolation.temperatures",
            "every suite is greedy, and a temperature changes sampled answers only",
            "remove temperatures, or give a suite n above 1",
            "suites",
        )


def _suites(recipe: EvalRecipe) -> Iterator[Finding]:
    if recipe.regrade is not None:  # the suites were asked already
        return
    for index, spec in enumerate(recipe.suites):
        place = f"suites.{index}"
        if spec.n > 1 and spec.temperature == 0:
            yield _finding(
                f"{place}.temperature",
                f"{spec.n} greedy samples of one item are the same",
                "set n to 1 or a temperature above 0 (0.6 is usual)",
                f"{place}.n",
            )
        if spec.suite == HOLDOUT and not is_run_ref(recipe.model):
            yield _finding(
                f"{place}.suite",
                "holdout belongs to a run, and the model is not a run's",
                "name a suite, or a model run:ID/...",
                "model",
            )
        size = suite_items(spec.suite)
        if spec.items is not None and size is not None and spec.items > size:
            yield _finding(
                f"{place}.items",
                f"{spec.suite} has {size} items, not {spec.items}",
                f"at most {size}",
                f"{place}.suite",
            )
        known = splits(spec.suite)
        if known is not None and spec.split not in known:
            yield _finding(
                f"{place}.split",
                f"{spec.suite} has no split {spec.split!r}",
                f"allowed: {allowed(known)}",
                f"{place}.suite",
            )
        yield from _options(spec.suite, spec.options, f"{place}.options", f"{place}.suite")


def _against(recipe: EvalRecipe) -> Iterator[Finding]:
    for index, ref in enumerate(recipe.against):
        if ref == "base" and not is_run_ref(recipe.model):
            yield _finding(
                f"against.{index}",
                "base is the model a run started from, and the model is not a run's",
                "name the model itself",
                "model",
            )
        if ref == recipe.model or ref in recipe.against[:index]:
            yield _finding(f"against.{index}", f"{ref} is named twice", "compare with each model once", "model")


def _compute(recipe: AnalysisRecipe) -> Iterator[Finding]:
    for index, spec in enumerate(recipe.compute):
        for field, message, hint in weights_problems(
            spec.name,
            spec.extrapolation,
            spec.export,
            alone=len(recipe.compute) == 1 and recipe.run is not None,
            probed=spec.probe is not None,
        ):
            yield _finding(f"compute.{index}.{field}", message, hint, f"compute.{index}.name")
        place = f"compute.{index}"
        if spec.name in WITHOUT_PROBE and spec.probe is not None:
            yield _finding(f"{place}.probe", f"{spec.name} scores no probes", "remove probe", f"{place}.name")
        if spec.name not in ("weight_linearity", "activation_linearity") and spec.sample is not None:
            yield _finding(f"{place}.sample", f"{spec.name} draws no sample", "remove sample", f"{place}.name")
        if recipe.run is None and spec.name in OF_RUNS:
            yield _finding(
                place, f"{spec.name} needs a train run's data and rewards", "name a run", f"{place}.name", "run"
            )
        probe = spec.probe
        if recipe.run is None and probe is not None and probe.token_ids is None and probe.suite == HOLDOUT:
            yield _finding(
                f"{place}.probe.suite",
                "holdout belongs to a run, and these checkpoints are no run's",
                "name a suite, or give token_ids",
                f"{place}.name",
                "run",
            )


def _trajectory(recipe: AnalysisRecipe) -> Iterator[Finding]:
    given = recipe.checkpoints
    if (recipe.run is None) == (given is None):
        yield _finding(
            "run", "name either a run or checkpoints", 'write {"run": "run:ID"} or {"checkpoints": ...}', "checkpoints"
        )
    if given is None:
        if recipe.driven_by is not None:
            yield _finding("driven_by", "a run's optimizer is in its recipe", "remove it", "run", "checkpoints")
        return
    if (given.folder is None) == (given.models is None):
        yield _finding(
            "checkpoints", "name either a folder or models", 'a folder name, or [{"model": ..., "step": ...}]'
        )
    if given.steps is not None and given.folder is None:
        yield _finding("checkpoints.steps", "steps belong to a folder", "remove steps, or name the folder")
