"""The paired comparison of two evaluations, by their original verdicts or by later ones, beside the noise floor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from api.errors import InvalidRequest
from core.evals.comparison import Paired, paired
from core.store import evaluations, regrades
from core.store.evaluations import CORRECT, NO_CLAIM
from core.store.models import Evaluation

LISTED_ITEMS = 200
ORIGINAL, LATEST = "original", "latest"


@dataclass(frozen=True)
class _Graded:
    """One evaluation under one grading: each item's share of right samples and what it shares with others."""

    verifier_version: str | None
    regrade_id: str | None
    scores: Mapping[str, float]
    clusters: Mapping[str, str | None]


def diff(
    session: Session,
    a: Evaluation,
    b: Evaluation,
    *,
    verdicts: str = ORIGINAL,
    noise: tuple[Evaluation, Evaluation] | None = None,
) -> dict[str, Any]:
    """What evaluation ``b`` lost and gained against ``a`` on their common items, with an exact test.

    An item's score is the share of its samples that were right. ``verdicts`` is "original", "latest" (each evaluation's
    newest grading) or a verifier version that both were graded by. ``noise`` are two evaluations of one model, by default
    the two base evaluations of the run of ``b`` or ``a``. Raises :class:`InvalidRequest` for evaluations whose items or
    verdicts do not mean the same.
    """
    refuse_unlike(a, b, param="b")
    before, after = _graded(session, a, verdicts), _graded(session, b, verdicts)
    if before.verifier_version != after.verifier_version:
        raise _not_comparable(
            f"the evaluations differ in verifier_version: {before.verifier_version} and {after.verifier_version}",
            f"grade the older one again (POST /evals/{a.id}/regrade or /evals/{b.id}/regrade), then ask verdicts=latest",
        )
    shared = [item_id for item_id in before.scores if item_id in after.scores]
    if not shared:
        raise _not_comparable("the evaluations have no judged item in common")
    result = _paired(before, after, shared)
    exact = a.samples == b.samples == 1
    return {
        "a": a.id,
        "b": b.id,
        "suite": a.suite,
        "verdicts": verdicts,
        "verifier_version": before.verifier_version,
        "a_regrade": before.regrade_id,
        "b_regrade": after.regrade_id,
        "same_data": None if None in (a.dataset_hash, b.dataset_hash) else a.dataset_hash == b.dataset_hash,
        "n": result.n,
        "only_a": len(before.scores) - len(shared),
        "only_b": len(after.scores) - len(shared),
        "a_accuracy": _mean(before, shared),
        "b_accuracy": _mean(after, shared),
        "lost": result.lost,
        "gained": result.gained,
        "delta": result.delta,
        "ci": list(result.ci),
        "ci_method": result.method,
        "standard_error": result.standard_error,
        "clusters": result.clusters,
        "p_value": result.p_value,
        "test": "exact McNemar, two-sided" if exact else "exact sign test on items, two-sided",
        "noise_floor": _noise_floor(session, a, b, verdicts, noise),
        "lost_items": [name for name in shared if after.scores[name] < before.scores[name]][:LISTED_ITEMS],
        "gained_items": [name for name in shared if after.scores[name] > before.scores[name]][:LISTED_ITEMS],
    }


def refuse_unlike(a: Evaluation, b: Evaluation, *, param: str) -> None:
    """Refuse two evaluations whose items or verdicts do not mean the same. Raises :class:`InvalidRequest`."""
    for name in ("suite", "verifier"):
        if getattr(a, name) != getattr(b, name):
            message = f"the evaluations differ in {name}: {getattr(a, name)} and {getattr(b, name)}"
            raise _not_comparable(message, param=param)


def _noise_floor(
    session: Session, a: Evaluation, b: Evaluation, verdicts: str, given: tuple[Evaluation, Evaluation] | None
) -> dict[str, Any] | None:
    """How much two evaluations of one model differ by themselves; None where there are no two."""
    pair = given or _base_runs(session, a, b)
    if pair is None:
        return None
    for row in pair:
        if (row.suite, row.verifier) != (a.suite, a.verifier):
            raise _not_comparable(f"evaluation {row.id} is of suite {row.suite}, not {a.suite}", param="noise")
    first, second = (_graded(session, row, verdicts) for row in pair)
    shared = [item_id for item_id in first.scores if item_id in second.scores]
    if not shared:
        return None
    result = _paired(first, second, shared)
    return {
        "a": pair[0].id,
        "b": pair[1].id,
        "n": result.n,
        "lost": result.lost,
        "gained": result.gained,
        "delta": result.delta,
        "flipped_share": (result.lost + result.gained) / result.n,
    }


def _base_runs(session: Session, a: Evaluation, b: Evaluation) -> tuple[Evaluation, Evaluation] | None:
    for row in (b, a):
        found = evaluations.base_evaluations(session, row.run_id, row.suite)
        if len(found) >= 2:
            return found[0], found[1]
    return None


def _graded(session: Session, row: Evaluation, verdicts: str) -> _Graded:
    """The evaluation by the asked verdicts; raises :class:`InvalidRequest` where it was not graded so."""
    later = regrades.list_for(session, row.id)
    if verdicts == LATEST:
        chosen = later[-1] if later else None
    elif verdicts in (ORIGINAL, row.verifier_version):
        chosen = None
    else:
        chosen = next((one for one in reversed(later) if one.verifier_version == verdicts), None)
        if chosen is None:
            have = ", ".join(dict.fromkeys([str(row.verifier_version), *(one.verifier_version for one in later)]))
            raise InvalidRequest(
                f"evaluation {row.id} was not graded by version {verdicts[:80]}",
                param="verdicts",
                code="not_graded",
                hint=f"original, latest, or one of its versions: {have}",
            )
    if chosen is None:
        return _scored(evaluations.clustered_verdicts(session, row.id), row.verifier_version, None)
    return _scored(regrades.verdicts(session, chosen.id), chosen.verifier_version, chosen.id)


def _scored(rows: list[tuple[str, str | None, str]], version: str | None, regrade_id: str | None) -> _Graded:
    """Share of right samples by item; samples that the machinery failed to judge are left out."""
    counts: dict[str, list[int]] = {}
    clusters: dict[str, str | None] = {}
    for item_id, cluster, verdict in rows:
        if verdict == NO_CLAIM:
            continue
        count = counts.setdefault(item_id, [0, 0])
        count[0] += verdict == CORRECT
        count[1] += 1
        clusters[item_id] = cluster
    return _Graded(version, regrade_id, {name: right / judged for name, (right, judged) in counts.items()}, clusters)


def _paired(before: _Graded, after: _Graded, shared: list[str]) -> Paired:
    clusters = [
        ("item", name) if (cluster := after.clusters[name]) is None else ("cluster", cluster) for name in shared
    ]
    return paired([before.scores[name] for name in shared], [after.scores[name] for name in shared], clusters=clusters)


def _mean(graded: _Graded, shared: list[str]) -> float:
    return sum(graded.scores[name] for name in shared) / len(shared)


def _not_comparable(
    message: str, hint: str = "compare two evaluations of one suite by one verifier", *, param: str = "b"
) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="not_comparable", hint=hint)
