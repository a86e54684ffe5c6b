"""One evaluation: sample every item through an engine, grade in the pool, give out records batch by batch.

The caller renders prompts, decodes tokens and stores records; this module stores nothing, knows no model and imports no
torch. It can be stopped between batches and says how far it came.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeVar

from core.engines.base import Completion, Engine, Request, SamplingParams
from core.evals.summary import EvaluationSummary, Tally
from core.streams import stream_seed
from core.tasks.items import Item, cluster_of
from core.tasks.pool import Job, VerifierPool
from core.tasks.verifiers.verdict import Outcome, Verdict

T = TypeVar("T")


class RenderedPrompt(Protocol):
    """What rendering gives: the token ids that are the prompt, and their hash."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt's token ids, with exactly one BOS where the model has one."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of the token ids, the key under which the prompt is stored."""
        ...

    @property
    def prefill(self) -> str:
        """The beginning of the answer that the recipe put into the prompt."""
        ...


@dataclass(frozen=True)
class Record:
    """One item's completion and its verdict, with the columns of the table ``item_records``."""

    item_id: str
    cluster: str | None
    position: int
    sample: int
    prompt_sha256: str
    token_ids: tuple[int, ...]
    text: str
    gold: str
    extracted: str | None
    verdict: str
    reason: str
    finish_reason: str
    n_tokens: int
    verifier_version: str
    verify_ms: float
    details: Mapping[str, float] | None = None

    @property
    def score(self) -> float | None:
        """1 for correct, None when it could not be judged, else 0."""
        return {Outcome.CORRECT: 1.0, Outcome.INFRA_ERROR: None}.get(Outcome(self.verdict), 0.0)


def evaluate(
    engine: Engine,
    render: Callable[[Item], RenderedPrompt],
    items: Sequence[Item],
    *,
    suite: str,
    params: SamplingParams,
    batch_size: int,
    pool: VerifierPool,
    seed: int,
    decode: Callable[[Sequence[int]], str],
    samples: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    on_batch: Callable[[list[Record]], None] = lambda records: None,
) -> EvaluationSummary:
    """Sample ``samples`` completions per item in batches of at most ``batch_size`` and grade them.

    Temperature 0 is greedy: one record per item. Each sampled completion has its own seed from the stream
    ("eval", suite, item id, sample), so neither batching nor the order of items changes what is drawn. A batch is graded
    while the next is sampled; then ``on_batch`` gets its records, in order, and only they are kept in memory.
    ``should_stop`` is asked before each batch.
    """
    if batch_size < 1 or samples < 1:
        raise ValueError(f"batch_size is {batch_size} and samples is {samples}; both must be at least 1")
    greedy = params.temperature == 0
    if greedy and samples != 1:
        raise ValueError(f"samples is {samples} at temperature 0; greedy completions are all equal, so it must be 1")
    if len({item.id for item in items}) != len(items):
        raise ValueError(f"suite {suite} holds two items with one id")
    asker = _Asker(engine, render, decode, pool, params, suite, seed)
    tally, asked = Tally(), 0
    clock = {"sampling_s": 0.0, "grading_s": 0.0}
    pending: _Sampled | None = None
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="grade-batch") as grader:

        def finish(sampled: _Sampled) -> None:
            records = _timed(clock, "grading_s", lambda: asker.finish(sampled))
            _count(tally, records)
            on_batch(records)

        for work in _batches(items, samples, batch_size):
            if should_stop():
                break
            sampled = _timed(clock, "sampling_s", functools.partial(asker.start, work, grader))
            asked += len(work)
            if pending is not None:
                finish(pending)
            pending = sampled
        if pending is not None:
            finish(pending)
    finished = asked == len(items) * samples
    return tally.summary(suite=suite, greedy=greedy, samples=samples, finished=finished, timing=_rates(clock, tally))


_Work = Sequence[tuple[int, Item, int]]


def _batches(items: Sequence[Item], samples: int, size: int) -> Iterator[_Work]:
    """Cut (position, item, sample) triples into batches, item by item."""
    work = ((position, item, sample) for position, item in enumerate(items) for sample in range(samples))
    while batch := list(itertools.islice(work, size)):
        yield batch


def _timed(clock: dict[str, float], name: str, work: Callable[[], T]) -> T:
    """Do ``work`` and add its seconds to the clock. Grading counts only as far as sampling did not cover it."""
    began = monotonic()
    try:
        return work()
    finally:
        clock[name] += monotonic() - began


def _rates(clock: Mapping[str, float], tally: Tally) -> dict[str, float]:
    seconds = clock["sampling_s"]
    return dict(clock) | ({"tokens_per_s": tally.tokens / seconds} if seconds > 0 else {})


@dataclass(frozen=True)
class _Sampled:
    """A batch that was sampled and is being graded."""

    work: _Work
    prompts: Mapping[str, RenderedPrompt]
    completions: list[Completion]
    texts: list[str]
    verdicts: "Future[list[Verdict]]"


@dataclass(frozen=True)
class _Asker:
    """Everything that stays the same from batch to batch."""

    engine: Engine
    render: Callable[[Item], RenderedPrompt]
    decode: Callable[[Sequence[int]], str]
    pool: VerifierPool
    params: SamplingParams
    suite: str
    seed: int

    def start(self, work: _Work, grader: ThreadPoolExecutor) -> _Sampled:
        """Sample (position, item, sample) triples and let them be graded while the next ones are sampled."""
        prompts = {item.id: self.render(item) for _, item, _ in work}
        completions = self._sample(work, prompts)
        texts = [self.decode(completion.token_ids) for completion in completions]
        answers = _answers(work, prompts, texts)
        return _Sampled(work, prompts, completions, texts, grader.submit(self._grade, work, answers))

    def finish(self, sampled: _Sampled) -> list[Record]:
        """Wait for the verdicts and return the records, in order.

        A failure of the machinery is not a wrong answer: what could not be judged is graded once more, and asked again once
        where that fails too.
        """
        work, prompts, completions, texts = sampled.work, sampled.prompts, sampled.completions, sampled.texts
        verdicts = sampled.verdicts.result()
        if left := _unjudged(verdicts):
            again = [work[place] for place in left]
            _put(verdicts, left, self._grade(again, _answers(again, prompts, [texts[place] for place in left])))
        if left := _unjudged(verdicts):
            again = [work[place] for place in left]
            _put(completions, left, self._sample(again, prompts))
            _put(texts, left, [self.decode(completions[place].token_ids) for place in left])
            _put(verdicts, left, self._grade(again, _answers(again, prompts, [texts[place] for place in left])))
        return [
            Record(
                item_id=item.id,
                cluster=cluster_of(item),
                position=position,
                sample=sample,
                prompt_sha256=prompts[item.id].sha256,
                token_ids=tuple(completion.token_ids),
                text=text,
                gold=item.gold,
                extracted=verdict.extracted,
                verdict=verdict.verdict.value,
                reason=verdict.reason,
                finish_reason=completion.finish_reason,
                n_tokens=len(completion.token_ids),
                verifier_version=verdict.version,
                verify_ms=verdict.ms,
                details=dict(verdict.details) or None,
            )
            for (position, item, sample), completion, text, verdict in zip(
                work, completions, texts, verdicts, strict=True
            )
        ]

    def _sample(self, work: _Work, prompts: Mapping[str, RenderedPrompt]) -> list[Completion]:
        requests = [
            Request(prompts[item.id].token_ids, stream_seed(self.seed, "eval", self.suite, item.id, sample))
            for _, item, sample in work
        ]
        completions = self.engine.generate(requests, self.params, logprobs=False)
        if len(completions) != len(requests):
            raise RuntimeError(f"the engine gave {len(completions)} completions for {len(requests)} requests")
        return list(completions)

    def _grade(self, work: _Work, answers: Sequence[str]) -> list[Verdict]:
        return self.pool.grade([Job(item, answer) for (_, item, _), answer in zip(work, answers, strict=True)])


def _answers(work: _Work, prompts: Mapping[str, RenderedPrompt], texts: Sequence[str]) -> list[str]:
    """What is judged: the prefill and what was sampled behind it."""
    return [prompts[item.id].prefill + text for (_, item, _), text in zip(work, texts, strict=True)]


def _unjudged(verdicts: Sequence[Verdict]) -> list[int]:
    return [place for place, verdict in enumerate(verdicts) if verdict.verdict is Outcome.INFRA_ERROR]


def _put(values: list[T], places: Sequence[int], new: Sequence[T]) -> None:
    for place, value in zip(places, new, strict=True):
        values[place] = value


def summarise(
    records: Iterable[Record], *, suite: str, greedy: bool, samples: int, finished: bool
) -> EvaluationSummary:
    """Summarise records at once; see :class:`EvaluationSummary`."""
    tally = Tally()
    _count(tally, records)
    return tally.summary(suite=suite, greedy=greedy, samples=samples, finished=finished)


def _count(tally: Tally, records: Iterable[Record]) -> None:
    for record in records:
        tally.add(
            record.item_id,
            record.verdict,
            cluster=record.cluster,
            n_tokens=record.n_tokens,
            truncated=record.finish_reason == "length",
            details=record.details,
        )
