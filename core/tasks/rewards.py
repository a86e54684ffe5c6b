"""Reward of one completion: named terms with weights over a verdict, raw values kept apart from the weighted sum.

Terms are ``auto`` (the items' own verifier) or that verifier's name; ``length``, a penalty by tokens; ``format``, see
:func:`format_term`; ``random``, a coin as a control arm; and functions from the operator's files. A term may have no value
(None) for a sample and then adds nothing. Weight 0 logs only. With ``outcome_gate`` all but the verifier count only for right
answers. A sample that could not be judged, or whose function the machinery failed to run, has no reward at all: its total
is None and the trainer masks it. Advantages are computed elsewhere.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from core.recipes.catalogue import SHAPING_TERMS
from core.recipes.rewards import FILE, RewardTerm, gated
from core.streams import stream_seed, uniforms
from core.tasks.answers import Answer
from core.tasks.items import Item, ItemError
from core.tasks.pool import Job, VerifierPool
from core.tasks.reward_files import RewardFunction
from core.tasks.reward_pool import Call, RewardPool, Scored
from core.tasks.verifiers.boxed import after_thinking, last_boxed
from core.tasks.verifiers.verdict import Outcome, Verdict

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class RewardSpec:
    """The terms, whether all but the verifier count only for right answers, and the seed of what is random.

    ``functions`` holds the own function of every term that names one, ``runner`` the processes that run them.
    """

    terms: Mapping[str, RewardTerm]
    seed: int = 0
    outcome_gate: bool = False
    functions: Mapping[str, RewardFunction] = field(default_factory=dict)
    runner: RewardPool | None = None


@dataclass(frozen=True)
class Reward:
    """``total`` is the weighted sum, or None when the sample is masked; ``terms`` are raw values by recipe name.

    ``weighted`` is what each term contributed to the total, ``failures`` why own functions gave no value.
    """

    total: float | None
    terms: Mapping[str, float | None]
    verdict: Verdict
    weighted: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


def check_terms(terms: Iterable[str], items: Iterable[Item]) -> None:
    """Raise :class:`ItemError` when a term has no value for one of the items: it names another verifier than theirs."""
    names = [name for name in terms if not name.startswith(FILE)]
    for item in items:
        for name in names:
            if name not in ("auto", item.verifier, *SHAPING_TERMS):
                allowed = ", ".join(("auto", item.verifier, *SHAPING_TERMS))
                raise ItemError(f"rewards: the term {name!r} has no value for item {item.id}; allowed: {allowed}")


def grade_samples(
    spec: RewardSpec, pool: VerifierPool, answers: Sequence[Answer], *, step: int, first: int = 0
) -> list[Reward]:
    """Grade completions of one step in the pool and reward them, in order; ``first`` is the first one's place in the step.

    The random term of a sample is drawn from the stream ("reward", "random", step, place in the step), and an own function's
    random numbers are seeded by ("reward", term, step, place).
    """
    verdicts = pool.grade([Job(answer.item, answer.text) for answer in answers])
    coins = uniforms(spec.seed, "reward", "random", step, n=first + len(answers))[first:]
    own = _own_values(spec, answers, step, first)
    return [
        reward(spec, verdict, answer, coin, {term: values[place] for term, values in own.items()})
        for place, (verdict, answer, coin) in enumerate(zip(verdicts, answers, coins, strict=True))
    ]


def failed_terms(rewards: Iterable[Reward]) -> dict[str, tuple[int, str]]:
    """Return by term how many samples its function gave no value for because it failed, and the first reason."""
    found: dict[str, tuple[int, str]] = {}
    for one in rewards:
        for term, reason in one.failures.items():
            count, first = found.get(term, (0, reason))
            found[term] = (count + 1, first)
    return found


def _own_values(spec: RewardSpec, answers: Sequence[Answer], step: int, first: int) -> dict[str, list[Scored]]:
    if not spec.functions:
        return {}
    if spec.runner is None:
        raise ValueError(f"the terms {', '.join(spec.functions)} need processes to run in")
    found: dict[str, list[Scored]] = {}
    for term, function in spec.functions.items():
        arguments = spec.terms[term].arguments or {}
        calls = [
            Call(function, answer, arguments, stream_seed(spec.seed, "reward", term, step, place))
            for place, answer in enumerate(answers, start=first)
        ]
        found[term] = spec.runner.score(calls)
    return found


def reward(
    spec: RewardSpec, verdict: Verdict, answer: Answer, coin: float, own: Mapping[str, Scored] | None = None
) -> Reward:
    """Combine the terms for one graded completion; ``coin`` is uniform in [0, 1), ``own`` the own functions' results."""
    own = own or {}
    terms = {
        name: own[name].value if name in own else _value(name, term, verdict, answer, coin)
        for name, term in spec.terms.items()
    }
    failures = {name: result.error for name, result in own.items() if result.error is not None}
    if verdict.verdict is Outcome.INFRA_ERROR or any(result.infra for result in own.values()):
        return Reward(None, terms, verdict, failures=failures)
    closed = spec.outcome_gate and verdict.verdict is not Outcome.CORRECT
    weighted = {
        name: 0.0 if (value := terms[name]) is None or (closed and gated(name)) else term.weight * value
        for name, term in spec.terms.items()
    }
    return Reward(math.fsum(weighted.values()), terms, verdict, weighted, failures)


def _value(name: str, term: RewardTerm, verdict: Verdict, answer: Answer, coin: float) -> float | None:
    full = term.filled(name)
    match name:
        case "length":
            return -max(0, answer.n_tokens - (full.free or 0)) / (full.per or 1)
        case "format":
            return format_term(answer.opening + answer.text, verdict.verifier, think=bool(full.think))
        case "random":
            return float(coin < (full.probability or 0.0))
        case "auto":
            return verdict.score
        case _ if name == verdict.verifier:
            return verdict.score
        case _:
            allowed = ", ".join(("auto", verdict.verifier, *SHAPING_TERMS))
            raise ItemError(f"rewards: the term {name!r} has no value for these items; allowed: {allowed}")


def format_term(text: str, verifier: str, *, think: bool = False) -> float | None:
    """1 when the answer is stated in the asked form, else 0; None where no form is asked for.

    For mathematics the form is exactly one complete box behind the thinking; other graders ask for none. With ``think`` the
    whole answer must be one thought in ``<think>...</think>``, not empty, and something behind it. ``text`` is the whole
    answer: what the template opened, the prefill, and what was sampled.
    """
    if think and not _thought_first(text):
        return 0.0
    if verifier != "math":
        return 1.0 if think else None
    body = after_thinking(text)
    return float(last_boxed(body) is not None and body.count("\\boxed{") == 1)


def _thought_first(text: str) -> bool:
    if text.count(_OPEN) != 1 or text.count(_CLOSE) != 1 or not text.lstrip().startswith(_OPEN):
        return False
    thought, _, rest = text.lstrip().removeprefix(_OPEN).partition(_CLOSE)
    return bool(thought.strip() and rest.strip())
