"""The two-minute preflight of a train recipe: its first step's samples, the longest sequence's memory, and the time of it all.

Runs instead of the run, on the worker that would run it, with the same model, data, prompts, engine and kernels. It samples
groups of the first step's prompts for as long as its share of the time allows, takes one update at the size that the memory
plan was made for, and puts what it saw into one report, an event of the run. It leaves no checkpoint, no curves and no
rollouts; the weights that its update changed are thrown away.
"""

import contextlib
import itertools
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from time import monotonic
from typing import Any

import torch

from core.engines.base import Engine, Request, SamplingParams
from core.engines.models import ModelError, stop_token_ids, text_decoder
from core.engines.references import find_model
from core.evals.engines import TrainPlan, open_for_training, plan_training
from core.evals.memory import out_of_memory_explained
from core.jobs import Outcome, RunContext, UserError
from core.planning.cost import look_items
from core.recipes import TrainRecipe
from core.store import events, runs
from core.streams import stream_seed
from core.tasks.pool import VerifierPool
from core.tasks.rewards import Reward, RewardSpec, grade_samples
from core.train.algorithm import objective_of
from core.train.policy import Policy, load_policy
from core.train.prepare import Prepared, prepare
from core.train.records import wait_for
from core.train.reference import reference_logp
from core.train.rewarding import rewards_of
from core.train.rollouts import Sample, sample_step
from core.train.update import TrainSequence, build_micro_batches, update

REPORT = "probe_report"
SECONDS = 120.0  # of measuring; loading the model and checking the data come before
SAMPLING_SHARE = 0.5
SHOWN_PROMPTS = 3
_WARMUP_TOKENS = 16


@dataclass(frozen=True)
class Sampled:
    """Groups of the first step that were sampled in time, with the seconds and the longest completion it was cut to."""

    groups: tuple[tuple[Sample, ...], ...]
    seconds: float
    cap: int


@dataclass(frozen=True)
class Trained:
    """One update at the planned size: tokens, seconds, and the peak memory of the process in GiB."""

    tokens: int
    rows: int
    seconds: float
    peak_gib: float
    finite: bool


def run_probe(context: RunContext, pool: VerifierPool | None = None, seconds: float = SECONDS) -> Outcome:
    """Run one attempt of a probe; its report is the event :data:`REPORT`. ``pool`` stays the caller's."""
    recipe = context.recipe
    if not isinstance(recipe, TrainRecipe):
        raise TypeError(f"run {context.run_id} is of kind {recipe.kind}, not train")
    if recipe.algorithm.supervised:
        raise UserError(
            "nothing_to_probe",
            f"a probe samples groups, and {recipe.algorithm.name} samples none; post the recipe itself with max_steps 2",
        )
    with (
        contextlib.nullcontext(pool) if pool else VerifierPool() as grading,
        rewards_of(recipe, context.settings.rewards_dir) as rewards,
        out_of_memory_explained(context, recipe),
    ):
        return _probe(context, recipe, grading, rewards, seconds)


def _probe(
    context: RunContext, recipe: TrainRecipe, pool: VerifierPool, rewards: RewardSpec, seconds: float
) -> Outcome:
    _phase(context, "prepare")
    try:
        folder = find_model(context.db, context.settings, context.fence, recipe.model).folder
        plan = plan_training(context, recipe, folder)
        device = torch.device("cuda" if context.device["kind"] == "cuda" else "cpu")
        policy = load_policy(folder, recipe, device, checkpointed_layers=plan.batches.layers)
    except ModelError as problem:
        raise UserError("unusable_model", str(problem)) from problem
    prepared = prepare(recipe, context.settings, policy.tokenizer, pool)
    engine = open_for_training(plan, policy.model, policy.tokenizer, folder, weights=policy.rollout_weights)
    began = monotonic()
    _phase(context, "probe: sampling")
    sampled = _sample(
        recipe,
        policy,
        prepared,
        engine,
        grade=partial(grade_samples, rewards, pool, step=1),
        seconds=SAMPLING_SHARE * seconds,
        asked=lambda: context.control.requested is not None,
    )
    if (asked := context.control.requested) is not None:
        return _ended(asked)
    _phase(context, "probe: update")
    engine.sleep()
    trained = _update(recipe, policy, plan)
    report = _report(recipe, prepared, sampled, trained, plan) | {"seconds": round(monotonic() - began, 3)}
    with context.db.fenced(context.fence) as session:
        events.append(session, context.run_id, REPORT, report, context.attempt)
    return Outcome("succeeded", f"probed in {report['seconds']:.0f} s: {report['summary']}")


def _ended(asked: str) -> Outcome:
    match asked:
        case "cancel":
            return Outcome("cancelled", "cancelled by request")
        case "pause":
            return Outcome("paused", "paused by request; a probe begins anew")
        case _:
            return Outcome("interrupted", "the worker is shutting down")


def _sample(
    recipe: TrainRecipe,
    policy: Policy,
    prepared: Prepared,
    engine: Engine,
    *,
    grade: Callable[..., list[Reward]],
    seconds: float,
    asked: Callable[[], bool],
) -> Sampled:
    """Sample the first step's groups, more at a time as long as the time allows, at least one."""
    params = SamplingParams(
        temperature=recipe.temperature,
        max_tokens=recipe.max_completion_length,
        stop_token_ids=stop_token_ids(policy.model, policy.tokenizer),
        stop=tuple(recipe.prompt.stop),
    )
    items = [prepared.train[place] for place in prepared.sampler.prompts_for_step(1, recipe.prompts_per_step)]
    prompts = [(item, prepared.render(item)) for item in items]
    decode = text_decoder(policy.tokenizer)
    cap = _affordable(engine, prompts[0][1].token_ids, params, seconds)
    params = replace(params, max_tokens=cap)
    groups: list[tuple[Sample, ...]] = []
    began, wanted = monotonic(), 1
    while len(groups) < len(prompts) and not asked():
        part = prompts[len(groups) : len(groups) + wanted]
        first = len(groups) * recipe.num_generations
        samples = sample_step(
            engine,
            part,
            step=1,
            seed=recipe.seed,
            num_generations=recipe.num_generations,
            params=params,
            decode=decode,
            grade=partial(grade, first=first),
        )
        groups += [tuple(group) for _, group in itertools.groupby(samples, key=lambda sample: sample.group)]
        spent = monotonic() - began
        # Groups that are decoded together take hardly longer than one, so the last round's size is no bound for the next.
        wanted = 2 * len(groups)
        if spent + spent / len(groups) > seconds:
            break
    return Sampled(tuple(groups), monotonic() - began, cap)


def _affordable(engine: Engine, prompt: Sequence[int], params: SamplingParams, seconds: float) -> int:
    """Tokens that one sequence can be decoded to in a third of the time, at most the recipe's; measured on a few."""
    few = min(_WARMUP_TOKENS, params.max_tokens)
    request = [Request(tuple(prompt), seed=stream_seed(0, "probe", "warmup"))]
    short = replace(params, max_tokens=few, stop_token_ids=(), stop=())
    engine.generate(request, short)
    began = monotonic()
    engine.generate(request, short)
    each = max(1e-6, (monotonic() - began) / few)
    return max(few, min(params.max_tokens, int(seconds / 3 / each)))


def _update(recipe: TrainRecipe, policy: Policy, plan: TrainPlan) -> Trained:
    """One update over a micro-batch of the longest sequences there can be, reference and optimizer step included."""
    longest = recipe.max_prompt_length + recipe.max_completion_length
    rows = max(1, plan.batches.micro // longest)
    vocabulary = policy.head.weight_VH.shape[0]
    words = torch.randint(vocabulary, (rows, longest), generator=torch.Generator().manual_seed(0)).tolist()
    cut = recipe.max_prompt_length
    sequences = [TrainSequence(tuple(row[:cut]), tuple(row[cut:]), (-1.0) ** place) for place, row in enumerate(words)]
    batches = build_micro_batches(sequences, [list(range(rows))], policy.device)
    if policy.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(policy.device)
    began = monotonic()
    reference = reference_logp(policy.reference, [batches])[0]
    with policy.training(1):
        result = update(
            policy.body,
            policy.head,
            policy.optimizer,
            sequences,
            batches,
            objective=objective_of(recipe.algorithm),
            lr=recipe.learning_rate,
            max_grad_norm=recipe.max_grad_norm,
            old_logp=None,
            ref_logp=reference,
        )
    wait_for(policy.device)
    finite = result.step is not None and result.step.applied
    return Trained(rows * longest, rows, monotonic() - began, _peak_gib(policy.device), finite)


def _peak_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _report(
    recipe: TrainRecipe, prepared: Prepared, sampled: Sampled, trained: Trained, plan: TrainPlan
) -> dict[str, Any]:
    groups = [[sample.reward.total for sample in group] for group in sampled.groups]
    samples = [sample for group in sampled.groups for sample in group]
    lengths = [len(sample.completion.token_ids) for sample in samples]
    truncated = fmean(sample.truncated for sample in samples)
    still = fmean(len({reward for reward in group if reward is not None}) <= 1 for group in groups)
    speed = sum(lengths) / sampled.seconds
    eta = _eta(recipe, prepared, mean_length=fmean(lengths), decoded_per_s=speed, trained=trained)
    return {
        "summary": (
            f"{len(groups)} groups, {still:.0%} without a difference to learn from, {truncated:.0%} of completions truncated, "
            f"about {eta['seconds'] / 3600:.1f} h in all"
        ),
        "prompts": [
            {"item_id": group[0].item.id, "text": group[0].prompt.text, "tokens": len(group[0].prompt.token_ids)}
            for group in sampled.groups[:SHOWN_PROMPTS]
        ],
        "groups": [_group(group) for group in sampled.groups],
        "pass_rate_histogram": pass_rate_histogram(sampled.groups, recipe.num_generations),
        "zero_variance_share": still,
        "truncated_share": truncated,
        "completion_cap": sampled.cap,
        "mean_completion_tokens": fmean(lengths),
        "warnings": [*prepared.warnings, *_warnings(recipe, sampled, still, truncated, trained)],
        "memory": {
            "tokens": trained.tokens,
            "sequences": trained.rows,
            "checkpointed_layers": plan.batches.layers,
            "peak_gib": trained.peak_gib,
            "predicted_gib": plan.allocated_gib,
        },
        "speed": {
            "decoded_tokens_per_s": speed,
            "trained_tokens_per_s": trained.tokens / trained.seconds,
            "sampling_s": sampled.seconds,
            "update_s": trained.seconds,
        },
        "eta": eta,
    }


def _group(group: Sequence[Sample]) -> dict[str, Any]:
    return {
        "item_id": group[0].item.id,
        "samples": [
            {
                "reward": sample.reward.total,
                "verdict": None if sample.reward.verdict is None else sample.reward.verdict.verdict.value,
                "reason": None if sample.reward.verdict is None else sample.reward.verdict.reason,
                "tokens": len(sample.completion.token_ids),
                "finish_reason": sample.completion.finish_reason,
                "text": sample.text,
            }
            for sample in group
        ],
    }


def pass_rate_histogram(groups: Sequence[Sequence[Sample]], generations: int) -> list[int]:
    """How many groups had 0, 1, ... correct samples."""
    right = Counter(
        sum(sample.reward.verdict is not None and sample.reward.verdict.verdict.value == "correct" for sample in group)
        for group in groups
    )
    return [right[count] for count in range(generations + 1)]


def _eta(
    recipe: TrainRecipe, prepared: Prepared, *, mean_length: float, decoded_per_s: float, trained: Trained
) -> dict[str, Any]:
    """Seconds of the whole recipe at the measured speeds. Looks are greedy and counted at the samples' mean length."""
    samples = recipe.prompts_per_step * recipe.num_generations
    mean_prompt = fmean(len(prepared.render(item).token_ids) for item in list(prepared.train)[:64])
    rollout = samples * mean_length / decoded_per_s
    updating = samples * (mean_prompt + mean_length) * trained.seconds / trained.tokens
    items = look_items(recipe)
    looking = (items or 0) * mean_length / decoded_per_s
    return {
        "seconds": recipe.max_steps * (rollout + updating) + looking,
        "step_s": rollout + updating,
        "rollout_s": rollout,
        "update_s": updating,
        "looks_s": None if items is None else looking,
        "basis": "the measured speeds times the recipe's samples at the probe's mean length; checkpoints are not counted",
    }


def _warnings(recipe: TrainRecipe, sampled: Sampled, still: float, truncated: float, trained: Trained) -> list[str]:
    found: list[str] = []
    if sampled.cap < recipe.max_completion_length:
        found.append(
            f"completions were cut at {sampled.cap} tokens instead of {recipe.max_completion_length} to stay within the "
            "time, so the shares of right and truncated answers are those at that length"
        )
    if still > 0.8:
        found.append(
            f"{still:.0%} of the groups have one reward throughout: they teach nothing; choose easier or harder items, or "
            "more generations"
        )
    if truncated > 0.5:
        found.append(f"{truncated:.0%} of the completions are truncated; raise max_completion_length")
    if not trained.finite:
        found.append("the update's gradient was not finite")
    return found


def _phase(context: RunContext, phase: str) -> None:
    with context.db.fenced(context.fence) as session:
        runs.progress(session, context.fence, phase=phase, done=None, total=None, unit=None)
