"""Reward of one completion: named terms with weights over a verdict, raw values kept apart from the weighted sum.

Terms are ``auto`` (the items' own verifier) or that verifier's name; ``length``, minus thousandths of tokens; ``format``,
see :func:`format_term`; and ``random``, a fair coin as a control arm. A term may have no value (None) for a sample and then
adds nothing. Weight 0 logs only. With ``outcome_gate`` the last three count only for right answers. A sample that could not
be judged has no reward at all: its total is None and the trainer masks it. Advantages are computed elsewhere.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.streams import uniforms
from core.tasks.items import Item, ItemError
from core.tasks.pool import Job, VerifierPool
from core.tasks.verifiers.boxed import after_thinking, last_boxed
from core.tasks.verifiers.verdict import Outcome, Verdict

SHAPING_TERMS = ("length", "format", "random")


@dataclass(frozen=True)
class RewardSpec:
    """The terms' weights, whether shaping terms count only for right answers, and the seed of the random term."""

    weights: Mapping[str, float]
    seed: int = 0
    outcome_gate: bool = False


@dataclass(frozen=True)
class Reward:
    """``total`` is the weighted sum, or None when the sample is masked; ``terms`` are raw values by recipe name."""

    total: float | None
    terms: Mapping[str, float | None]
    verdict: Verdict


def check_terms(weights: Mapping[str, float], items: Iterable[Item]) -> None:
    """Raise :class:`ItemError` when a term has no value for one of the items: it names another verifier than theirs."""
    for item in items:
        for name in weights:
            if name not in ("auto", item.verifier, *SHAPING_TERMS):
                allowed = ", ".join(("auto", item.verifier, *SHAPING_TERMS))
                raise ItemError(f"rewards: the term {name!r} has no value for item {item.id}; allowed: {allowed}")


def grade_samples(
    spec: RewardSpec,
    pool: VerifierPool,
    items: Sequence[Item],
    texts: Sequence[str],
    lengths: Sequence[int],
    *,
    step: int,
) -> list[Reward]:
    """Grade one step's completions in the pool and reward them, in order; ``lengths`` are in tokens.

    The random term of a sample is drawn from the stream ("reward", "random", step, place in the step).
    """
    if not len(items) == len(texts) == len(lengths):
        raise ValueError(
            f"{len(items)} items, {len(texts)} texts and {len(lengths)} lengths; the numbers must be equal"
        )
    verdicts = pool.grade([Job(item, text) for item, text in zip(items, texts, strict=True)])
    coins = uniforms(spec.seed, "reward", "random", step, n=len(items))
    return [
        reward(spec, verdict, text, n_tokens, coin)
        for verdict, text, n_tokens, coin in zip(verdicts, texts, lengths, coins, strict=True)
    ]


def reward(spec: RewardSpec, verdict: Verdict, text: str, n_tokens: int, coin: float) -> Reward:
    """Combine the terms for one graded completion; ``coin`` is uniform in [0, 1)."""
    terms = {name: _value(name, verdict, text, n_tokens, coin) for name in spec.weights}
    if verdict.verdict is Outcome.INFRA_ERROR:
        return Reward(None, terms, verdict)
    gated = spec.outcome_gate and verdict.verdict is not Outcome.CORRECT
    total = math.fsum(
        weight * value
        for name, weight in spec.weights.items()
        if (value := terms[name]) is not None and not (gated and name in SHAPING_TERMS)
    )
    return Reward(total, terms, verdict)


def _value(name: str, verdict: Verdict, text: str, n_tokens: int, coin: float) -> float | None:
    match name:
        case "length":
            return -n_tokens / 1000
        case "format":
            return format_term(text, verdict.verifier)
        case "random":
            return float(coin < 0.5)
        case "auto":
            return verdict.score
        case _ if name == verdict.verifier:
            return verdict.score
        case _:
            allowed = ", ".join(("auto", verdict.verifier, *SHAPING_TERMS))
            raise ItemError(f"rewards: the term {name!r} has no value for these items; allowed: {allowed}")


def format_term(text: str, verifier: str) -> float | None:
    """1 when the answer is stated in the asked form, else 0; None for graders that ask for no form.

    For mathematics the form is exactly one complete box behind the thinking.
    """
    if verifier != "math":
        return None
    body = after_thinking(text)
    return float(last_boxed(body) is not None and body.count("\\boxed{") == 1)
