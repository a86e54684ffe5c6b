"""The pass-rate filter: which training items the start model solves often enough to learn from, and not always.

Measured once, before anything is frozen, as the run itself samples, and kept in the store under the hash of everything it
depends on: weights, prompt, sampling, seed, grader. So another attempt, a fork and another run of the same start get the
same items without measuring again, and an interrupted measurement goes on where it was.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.engines.base import Engine, Request, SamplingParams
from core.jobs import RunContext, UserError
from core.prespec.canonical import canonical_bytes, decimals_as_strings
from core.recipes import TrainRecipe
from core.recipes.train import PassRate
from core.store import events, pass_rates, runs
from core.streams import stream_seed
from core.tasks.items import Item, ItemError, items_hash
from core.tasks.pool import Job, VerifierPool
from core.tasks.rewards import check_terms
from core.tasks.splits import PromptSampler
from core.tasks.verifiers import version_of
from core.tasks.verifiers.gold import check_golds
from core.tasks.verifiers.verdict import Outcome
from core.train.prepare import Prepared
from core.train.validation import Interrupted

FEWEST = 4
"""Fewer items than this are memorised, not learnt from."""

_DOMAIN = b"driftline/pass-rate/1\n"
_SLACK = 1e-9
EVENT = "pass_rate"


@dataclass(frozen=True)
class Asker:
    """The start model, and how it is asked: ``params`` are the run's own for training rollouts."""

    engine: Engine
    params: SamplingParams
    decode: Callable[[Sequence[int]], str]
    pool: VerifierPool
    weights_sha256: str


def filtered(context: RunContext, recipe: TrainRecipe, prepared: Prepared, asker: Asker) -> Prepared:
    """Return the data with only those training items whose pass rate lies in the recipe's range.

    Raises :class:`UserError` when too few items are left, and :class:`Interrupted` when the run was asked to stop; what was
    measured until then is kept.
    """
    wanted = recipe.data.pass_rate
    if wanted is None:
        return prepared
    items = prepared.train
    try:
        check_terms(recipe.rewards, items)
        check_golds(items, asker.pool)  # a wrong gold would look like an item that is too hard
    except ItemError as problem:
        raise UserError("unusable_data", str(problem)) from problem
    rates, cached = _rates(context, recipe, prepared, asker, wanted)
    kept = [item for item in items if _inside(rates[item.id], wanted)]
    summary = _summary(wanted, rates, len(kept), cached)
    needed = max(FEWEST, recipe.prompts_reserved)
    if len(kept) < needed:
        raise UserError(
            "too_few_items",
            f"data.pass_rate from {wanted.low:g} to {wanted.high:g} keeps {len(kept)} of {len(items)} training items "
            f"({summary['too_hard']} are solved less often, {summary['too_easy']} more often), and at least {needed} are "
            "needed; widen the range, take other data, or start from another model",
        )
    _record(context, summary)
    told = (
        f"data.pass_rate kept {len(kept)} of {len(items)} training items: {summary['too_hard']} are solved less often than "
        f"{wanted.low:g} and {summary['too_easy']} more often than {wanted.high:g}"
    )
    return replace(
        prepared,
        train=items.subset(kept, name=items.name, split=items.split),
        sampler=PromptSampler(len(kept), recipe.seed),
        warnings=(*prepared.warnings, told),
    )


def _rates(
    context: RunContext, recipe: TrainRecipe, prepared: Prepared, asker: Asker, wanted: PassRate
) -> tuple[dict[str, float], int]:
    """Return each training item's pass rate by id, and how many of them were known before."""
    settings = _settings(recipe, asker, prepared.train.verifier, wanted)
    key = hashlib.sha256(_DOMAIN + canonical_bytes(settings)).hexdigest()
    hashes = {item.id: _item_hash(item, prepared) for item in prepared.train}
    with context.db.read() as session:
        known = pass_rates.known(session, key, hashes.values())
    left = [item for item in prepared.train if hashes[item.id] not in known]
    for batch in _batches(left, max(1, recipe.prompts_per_step * recipe.num_generations // wanted.samples)):
        if context.control.requested is not None:
            raise Interrupted
        found = {hashes[item.id]: counts for item, counts in _measured(recipe, prepared, asker, wanted, batch)}
        known |= found
        with context.db.fenced(context.fence) as session:
            pass_rates.put(session, context.fence, key, settings, found)
            runs.progress(session, context.fence, phase="pass rates", done=len(known), total=len(hashes), unit="items")
    rates = {item: known[digest][0] / known[digest][1] for item, digest in hashes.items()}
    return rates, len(hashes) - len(left)


def _measured(
    recipe: TrainRecipe, prepared: Prepared, asker: Asker, wanted: PassRate, items: Sequence[Item]
) -> Iterator[tuple[Item, tuple[int, int]]]:
    """Yield each item with its (right, judged) samples."""
    asked = [item for item in items for _ in range(wanted.samples)]
    requests = [
        Request(prepared.render(item).token_ids, stream_seed(recipe.seed, "pass_rate", item.id, sample))
        for item in items
        for sample in range(wanted.samples)
    ]
    completions = asker.engine.generate(requests, asker.params, logprobs=False)
    answers = [
        prepared.render(item).prefill + asker.decode(completion.token_ids)
        for item, completion in zip(asked, completions, strict=True)
    ]
    jobs = [Job(item, answer) for item, answer in zip(asked, answers, strict=True)]
    verdicts = [verdict.verdict for verdict in asker.pool.grade(jobs)]
    lost = [place for place, verdict in enumerate(verdicts) if verdict is Outcome.INFRA_ERROR]
    for place, again in zip(lost, asker.pool.grade([jobs[place] for place in lost]), strict=True):
        verdicts[place] = again.verdict
    for number, item in enumerate(items):
        own = verdicts[number * wanted.samples : (number + 1) * wanted.samples]
        judged = sum(verdict is not Outcome.INFRA_ERROR for verdict in own)
        if not judged:
            raise RuntimeError(f"no sample of training item {item.id} could be judged, also when graded again")
        yield item, (sum(verdict is Outcome.CORRECT for verdict in own), judged)


def _settings(recipe: TrainRecipe, asker: Asker, verifier: str, wanted: PassRate) -> dict[str, Any]:
    """Everything that a pass rate depends on, items and their rendered prompts aside."""
    params = asker.params
    settings: dict[str, Any] = decimals_as_strings(
        {
            "weights_sha256": asker.weights_sha256,
            "engine": recipe.engine,
            "dtype": recipe.dtype,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "max_tokens": params.max_tokens,
            "stop": list(params.stop),
            "stop_token_ids": sorted(params.stop_token_ids),
            "prefill": recipe.prompt.prefill,
            "samples": wanted.samples,
            "seed": recipe.seed,
            "verifier": verifier,
            "verifier_version": version_of(verifier),
        }
    )
    return settings


def _item_hash(item: Item, prepared: Prepared) -> str:
    """Hash of an item with the prompt that it becomes, so that another template is another measurement."""
    return hashlib.sha256(f"{items_hash([item])} {prepared.render(item).sha256}".encode()).hexdigest()


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _inside(rate: float, wanted: PassRate) -> bool:
    return wanted.low - _SLACK <= rate <= wanted.high + _SLACK


def _summary(wanted: PassRate, rates: dict[str, float], kept: int, cached: int) -> dict[str, Any]:
    """What the event says; ``histogram`` counts items by pass rate."""
    counts = Counter(round(rate, 4) for rate in rates.values())
    return {
        "low": wanted.low,
        "high": wanted.high,
        "samples": wanted.samples,
        "items": len(rates),
        "kept": kept,
        "too_hard": sum(rate < wanted.low - _SLACK for rate in rates.values()),
        "too_easy": sum(rate > wanted.high + _SLACK for rate in rates.values()),
        "known_before": cached,
        "histogram": [{"rate": rate, "items": counts[rate]} for rate in sorted(counts)],
    }


def _record(context: RunContext, summary: dict[str, Any]) -> None:
    """Tell the run's history once; later attempts find the same."""
    with context.db.fenced(context.fence) as session:
        if not events.payloads(session, context.run_id, EVENT):
            events.append(session, context.run_id, EVENT, summary, context.attempt)
