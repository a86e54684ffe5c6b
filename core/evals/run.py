"""One evaluation: sample every item through an engine, grade in the pool, give out records batch by batch.

The caller renders prompts, decodes tokens and stores records; this module stores nothing, knows no model and imports no
torch. It can be stopped between batches and says how far it came.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from core.engines.base import Completion, Engine, Request, SamplingParams
from core.evals.metrics import average_at_k, wilson
from core.streams import stream_seed
from core.tasks.items import Item
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


@dataclass(frozen=True)
class Record:
    """One item's completion and its verdict, with the columns of the table ``item_records``."""

    item_id: str
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

    @property
    def score(self) -> float | None:
        """1 for correct, None when it could not be judged, else 0."""
        return {Outcome.CORRECT: 1.0, Outcome.INFRA_ERROR: None}.get(Outcome(self.verdict), 0.0)


@dataclass(frozen=True)
class EvaluationSummary:
    """What an evaluation found. Shares are over records; ``accuracy`` is over items, each item's samples averaged.

    For one sample per item ``ci_low`` and ``ci_high`` are Wilson's interval, else accuracy -+ 1.96 standard errors over
    items, clipped to [0, 1]. Records that could not be judged (``infra_errors``) count in nothing else. The numbers are
    None when nothing was judged. ``finished`` is false when it was stopped between batches.
    """

    suite: str
    mode: Literal["greedy", "sampled"]
    samples: int
    n_items: int
    n_records: int
    finished: bool
    correct: int
    accuracy: float | None
    standard_error: float | None
    ci_low: float | None
    ci_high: float | None
    truncated_share: float | None
    no_answer_share: float | None
    timeout_share: float | None
    mean_tokens: float | None
    infra_errors: int


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
    ("eval", suite, item id, sample), so neither batching nor the order of items changes what is drawn. ``on_batch`` gets
    each batch's records, in order, before the next is sampled; ``should_stop`` is asked between batches.
    """
    if batch_size < 1 or samples < 1:
        raise ValueError(f"batch_size is {batch_size} and samples is {samples}; both must be at least 1")
    greedy = params.temperature == 0
    if greedy and samples != 1:
        raise ValueError(f"samples is {samples} at temperature 0; greedy completions are all equal, so it must be 1")
    if len({item.id for item in items}) != len(items):
        raise ValueError(f"suite {suite} holds two items with one id")
    work = [(position, item, sample) for position, item in enumerate(items) for sample in range(samples)]
    asker = _Asker(engine, render, decode, pool, params, suite, seed)
    records: list[Record] = []
    for start in range(0, len(work), batch_size):
        if should_stop():
            break
        batch = asker.batch(work[start : start + batch_size])
        records += batch
        on_batch(batch)
    return summarise(records, suite=suite, greedy=greedy, samples=samples, finished=len(records) == len(work))


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

    def batch(self, work: Sequence[tuple[int, Item, int]]) -> list[Record]:
        """Sample and grade (position, item, sample) triples, in order.

        A failure of the machinery is not a wrong answer: what could not be judged is graded once more, and asked again once
        where that fails too.
        """
        prompts = {item.id: self.render(item) for _, item, _ in work}
        completions = self._sample(work, prompts)
        texts = [self.decode(completion.token_ids) for completion in completions]
        verdicts = self._grade(work, texts)
        if left := _unjudged(verdicts):
            _put(verdicts, left, self._grade([work[place] for place in left], [texts[place] for place in left]))
        if left := _unjudged(verdicts):
            again = [work[place] for place in left]
            _put(completions, left, self._sample(again, prompts))
            _put(texts, left, [self.decode(completions[place].token_ids) for place in left])
            _put(verdicts, left, self._grade(again, [texts[place] for place in left]))
        return [
            Record(
                item_id=item.id,
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
            )
            for (position, item, sample), completion, text, verdict in zip(
                work, completions, texts, verdicts, strict=True
            )
        ]

    def _sample(self, work: Sequence[tuple[int, Item, int]], prompts: Mapping[str, RenderedPrompt]) -> list[Completion]:
        requests = [
            Request(prompts[item.id].token_ids, stream_seed(self.seed, "eval", self.suite, item.id, sample))
            for _, item, sample in work
        ]
        completions = self.engine.generate(requests, self.params)
        if len(completions) != len(requests):
            raise RuntimeError(f"the engine gave {len(completions)} completions for {len(requests)} requests")
        return list(completions)

    def _grade(self, work: Sequence[tuple[int, Item, int]], texts: Sequence[str]) -> list[Verdict]:
        return self.pool.grade([Job(item, text) for (_, item, _), text in zip(work, texts, strict=True)])


def _unjudged(verdicts: Sequence[Verdict]) -> list[int]:
    return [place for place, verdict in enumerate(verdicts) if verdict.verdict is Outcome.INFRA_ERROR]


def _put(values: list[T], places: Sequence[int], new: Sequence[T]) -> None:
    for place, value in zip(places, new, strict=True):
        values[place] = value


def summarise(
    records: Sequence[Record], *, suite: str, greedy: bool, samples: int, finished: bool
) -> EvaluationSummary:
    """Summarise records, those of an interrupted evaluation too; see :class:`EvaluationSummary`."""
    judged = [record for record in records if record.score is not None]
    by_item: dict[str, list[float]] = {}
    for record in judged:
        by_item.setdefault(record.item_id, []).append(record.score or 0.0)
    correct = sum(record.verdict == Outcome.CORRECT for record in judged)
    accuracy = error = low = high = None
    if by_item:
        mean = average_at_k(list(by_item.values()))
        accuracy, error = mean.mean, mean.standard_error
        if samples == 1:
            interval = wilson(correct, len(judged))
            low, high = interval.low, interval.high
        elif error is not None:
            low, high = max(0.0, accuracy - 1.96 * error), min(1.0, accuracy + 1.96 * error)

    def share(count: int) -> float | None:
        return count / len(judged) if judged else None

    return EvaluationSummary(
        suite=suite,
        mode="greedy" if greedy else "sampled",
        samples=samples,
        n_items=len({record.item_id for record in records}),
        n_records=len(records),
        finished=finished,
        correct=correct,
        accuracy=accuracy,
        standard_error=error,
        ci_low=low,
        ci_high=high,
        truncated_share=share(sum(record.finish_reason == "length" for record in judged)),
        no_answer_share=share(sum(record.verdict == Outcome.NO_ANSWER for record in judged)),
        timeout_share=share(sum(record.verdict == Outcome.TIMEOUT for record in judged)),
        mean_tokens=sum(record.n_tokens for record in judged) / len(judged) if judged else None,
        infra_errors=len(records) - len(judged),
    )
