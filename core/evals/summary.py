"""What an evaluation found, gathered record by record, so that no record has to be kept.

Memory grows with the items, never with the samples' texts. Sampling and storing are done elsewhere.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from core.evals.metrics import Interval, average_at_k, mean_interval, mean_pass_at_k, wilson
from core.tasks.verifiers.verdict import Outcome

CONFIDENCE = 0.95


@dataclass(frozen=True)
class EvaluationSummary:
    """What an evaluation found. Shares are over records; ``accuracy`` is over items, each item's samples averaged.

    For one sample per item that shares nothing with others ``ci_low`` and ``ci_high`` are Wilson's interval, else Student's
    over the clusters (see :func:`core.evals.metrics.mean_interval`). Records that could not be judged (``infra_errors``)
    count in nothing else. The numbers are None when nothing was judged. ``finished`` is false when it was stopped between
    batches. ``measures`` is what is stored beside these as one document.
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
    measures: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Item:
    """The judged samples of one item."""

    cluster: str | None
    judged: int = 0
    correct: int = 0


@dataclass
class Tally:
    """Counts records and forgets them."""

    records: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    _items: dict[str, _Item] = field(default_factory=dict)
    _details: dict[str, list[float]] = field(default_factory=dict)

    def add(
        self,
        item_id: str,
        verdict: str,
        *,
        cluster: str | None = None,
        n_tokens: int = 0,
        truncated: bool = False,
        details: Mapping[str, float] | None = None,
    ) -> None:
        """Count one record."""
        item = self._items.setdefault(item_id, _Item(cluster))
        self.records += 1
        self.verdicts[verdict] += 1
        if verdict == Outcome.INFRA_ERROR:
            return
        item.judged += 1
        item.correct += verdict == Outcome.CORRECT
        self.tokens += n_tokens
        self.longest = max(self.longest, n_tokens)
        self.truncated += truncated
        for name, value in (details or {}).items():
            sums = self._details.setdefault(name, [0.0, 0.0])
            sums[0] += value
            sums[1] += 1

    @property
    def judged(self) -> int:
        """Records that could be judged."""
        return self.records - self.verdicts[Outcome.INFRA_ERROR]

    def summary(
        self, *, suite: str, greedy: bool, samples: int, finished: bool, timing: Mapping[str, float] | None = None
    ) -> EvaluationSummary:
        """Summarise what was counted, of an interrupted evaluation too."""
        items = [item for item in self._items.values() if item.judged]
        judged = self.judged
        accuracy = error = None
        interval: Interval | None = None
        clusters = 0
        if items:
            mean = average_at_k([[item.correct / item.judged] for item in items], _clusters(self._items))
            accuracy, error, clusters = mean.mean, mean.standard_error, mean.clusters
            alone = samples == 1 and clusters == len(items)
            interval = wilson(self.verdicts[Outcome.CORRECT], judged) if alone else mean_interval(mean, CONFIDENCE)

        def share(count: int) -> float | None:
            return count / judged if judged else None

        return EvaluationSummary(
            suite=suite,
            mode="greedy" if greedy else "sampled",
            samples=samples,
            n_items=len(self._items),
            n_records=self.records,
            finished=finished,
            correct=self.verdicts[Outcome.CORRECT],
            accuracy=accuracy,
            standard_error=error,
            ci_low=interval.low if interval else None,
            ci_high=interval.high if interval else None,
            truncated_share=share(self.truncated),
            no_answer_share=share(self.verdicts[Outcome.NO_ANSWER]),
            timeout_share=share(self.verdicts[Outcome.TIMEOUT]),
            mean_tokens=share(self.tokens),
            infra_errors=self.records - judged,
            measures={
                "records": self.records,
                "verdicts": dict(self.verdicts),
                "standard_error": error,
                "clusters": clusters,
                "pass_at_k": self._pass_at_k(samples),
                "timeout_share": share(self.verdicts[Outcome.TIMEOUT]),
                "tokens": {"total": self.tokens, "longest": self.longest, "mean": share(self.tokens)},
                "details": {name: total / count for name, (total, count) in self._details.items()},
                "timing": dict(timing or {}),
            },
        )

    def _pass_at_k(self, samples: int) -> dict[str, Any]:
        """pass@k for k of 1, 2, 4 ... and all samples, over the items that have so many judged samples."""
        found: dict[str, Any] = {}
        for k in sorted({*(1 << power for power in range(samples.bit_length())), samples}):
            enough = {name: item for name, item in self._items.items() if item.judged >= k}
            if not enough:
                continue
            mean = mean_pass_at_k([(item.judged, item.correct) for item in enough.values()], k, _clusters(enough))
            interval = mean_interval(mean, CONFIDENCE)
            found[str(k)] = {
                "mean": mean.mean,
                "standard_error": mean.standard_error,
                "ci": None if interval is None else [interval.low, interval.high],
                "items": len(enough),
            }
        return found


def _clusters(items: Mapping[str, _Item]) -> list[tuple[str, str]]:
    """What each judged item shares with others: its cluster's name, or nothing but itself."""
    return [
        ("item", name) if item.cluster is None else ("cluster", item.cluster)
        for name, item in items.items()
        if item.judged
    ]
