"""Reward of one completion: named terms with weights over a verdict, raw values kept apart from the weighted sum.

Terms are ``auto`` (the items' own verifier) or that verifier's name; ``length``, minus thousandths of tokens; ``format``,
see :func:`format_term`; and ``random``, a fair coin as a control arm. A term may have no value (None) for a sample and then
adds nothing. Weight 0 logs only. With ``outcome_gate`` the last three count only for right answers. A sample that could not
be judged has no reward at all: its total is None and the trainer masks it. Advantages are computed elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.streams import uniforms
from core.tasks.items import Item, ItemError
from core.tasks.pool import Job, VerifierPool
from core.tasks.verifiers import VERIFIERS
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


def resolve_terms(weights: Mapping[str, float], verifier: str) -> dict[str, float]:
    """Replace ``auto`` by the data set's verifier and check the terms.

    Raises :class:`ItemError` that names ``rewards`` for an unknown term, a verifier that cannot grade these items, a
    non-finite weight, or when ``auto`` and the verifier's own name are both given.
    """
    if not weights:
        raise ItemError('rewards is empty; give at least one term, such as {"auto": 1.0}')
    resolved: dict[str, float] = {}
    for term, weight in weights.items():
        name = verifier if term == "auto" else term
        if name in resolved:
            raise ItemError(f"rewards: 'auto' is {verifier!r} for this data set, so give only one of the two")
        if name not in SHAPING_TERMS and name not in VERIFIERS:
            raise ItemError(
                f"rewards: term {term!r} is not known; allowed: {', '.join(('auto', *VERIFIERS, *SHAPING_TERMS))}"
            )
        if name in VERIFIERS and name != verifier:
            raise ItemError(
                f"rewards: the verifier {name!r} cannot grade these items, which need {verifier!r}; write 'auto'"
            )
        if not math.isfinite(weight):
            raise ItemError(f"rewards: the weight of {term!r} is {weight}, but it must be finite")
        resolved[name] = float(weight)
    return resolved


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
        case _:
            return verdict.score


def format_term(text: str, verifier: str) -> float | None:
    """1 when the answer is stated in the asked form, else 0; None for graders that ask for no form.

    For mathematics the form is exactly one complete box behind the thinking.
    """
    if verifier != "math":
        return None
    body = after_thinking(text)
    return float(last_boxed(body) is not None and body.count("\\boxed{") == 1)
