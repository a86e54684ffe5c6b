"""The document of ``GET /runs/{id}/damage-stop``, from facts that the caller has read.

It never says that a run is well: at most that no damage was shown against base. Fields beyond the contract, all within
``paired``: ``interval`` (what the interval means), ``infra_failures``, ``lost_items`` and ``gained_items`` (ids at the
current look, at most 50 each) with ``lost_items_count`` and ``gained_items_count``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from core.damage.eprocess import EProcess
from core.damage.observations import JsonDict, paired_difference
from core.damage.rules import Rule, rule_from_frozen
from core.damage.threshold import Threshold

ITEM_CAP = 50
FINAL_STATES = ("succeeded", "damage_stopped", "failed", "cancelled")
INTERVAL = "descriptive: 95 % for this look alone (Bonett-Price, standard error over items)"


class LookRow(Protocol):
    """What this module reads of a stored look; rows of the table ``looks`` fit. ``draw`` holds {item_id, b, c, d}."""

    @property
    def step(self) -> int: ...
    @property
    def created_at(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def ci_low(self) -> float | None: ...
    @property
    def ci_high(self) -> float | None: ...
    @property
    def lost(self) -> float: ...
    @property
    def gained(self) -> float: ...
    @property
    def statistic(self) -> float | None: ...
    @property
    def decided(self) -> bool: ...
    @property
    def draw(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def rule_state(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class RunFacts:
    """``look_steps`` are the planned steps of the looks after the base look, in order."""

    run_id: str
    state: str
    look_steps: Sequence[int] = ()


@dataclass(frozen=True)
class BaseFacts:
    """The base model on the pool. ``correct`` is the sum of the frozen base scores; None when it is not known."""

    accuracy: float
    ci_low: float
    ci_high: float
    noise_floor: float | None = None
    correct: float | None = None


@dataclass(frozen=True)
class PrespecFacts:
    """The frozen prespecification: unix seconds, hash, and ``local`` or ``tsa``."""

    frozen_at: float
    hash: str
    clock: str = "local"
    exploratory: bool = True


def build_status(
    *,
    run: RunFacts,
    rule: Mapping[str, Any] | None,
    looks: Sequence[LookRow],
    base: BaseFacts | None = None,
    prespec: PrespecFacts | None = None,
    detects: Mapping[str, Any] | None = None,
    out_of_domain: Sequence[str] = (),
    early_warnings: Sequence[Any] = (),
) -> JsonDict:
    """Return the status document.

    ``rule`` is the frozen rule (decimals may be strings) or None when the recipe has no damage stop. ``looks`` are the
    current looks of the rule's suite against base, in order, superseded ones left out. ``detects`` replaces the figures
    frozen with the rule, for example once base accuracy is known. ``out_of_domain`` names suites that were looked at and
    are not the training task's.
    """
    built = rule_from_frozen(rule) if rule is not None else None
    state = "not_started" if built is None else _state(built, run, looks, base)
    decided = next((look for look in looks if look.decided), None)
    last = looks[-1] if looks else None
    return {
        "run_id": run.run_id,
        "state": state,
        "statement": _statement(state, built, looks, decided, base),
        "rule": None if built is None or rule is None else _rule(built, rule, detects),
        "prespecified_at": _time(prespec.frozen_at) if prespec else None,
        "clock": prespec.clock if prespec else None,
        "first_look_at": _time(looks[0].created_at) if looks else None,
        "spec_hash": prespec.hash if prespec else None,
        "confirmatory": bool(prespec and not prespec.exploratory),
        "looks": len(looks),
        "next_look_at_step": _next_step(run, last),
        "base": _base(base),
        "current": None if last is None else _current(last),
        "paired": None if last is None else _paired(last),
        "evidence": None if built is None else _evidence(built, last),
        "decided_at": _time(decided.created_at) if decided else None,
        "decided_at_step": decided.step if decided else None,
        "action": built.action if built else None,
        "forgetting": "measured on " + ", ".join(out_of_domain) if out_of_domain else "not measured",
        "early_warnings": list(early_warnings),
    }


def _state(rule: Rule, run: RunFacts, looks: Sequence[LookRow], base: BaseFacts | None) -> str:
    if not looks:
        return "not_started"
    if any(look.decided for look in looks):
        return "stopped" if run.state == "damage_stopped" else "damaged"
    if len(looks) > rule.looks and not isinstance(rule, EProcess):
        return "exhausted"
    earliest = rule.earliest_stop(base.correct if base else None)
    if earliest is None or len(looks) < earliest:
        return "insufficient"
    return "watch" if looks[-1].rule_state.get("watch") else "no_damage_shown"


def _statement(
    state: str, rule: Rule | None, looks: Sequence[LookRow], decided: LookRow | None, base: BaseFacts | None
) -> str:
    if rule is None:
        return "This run has no damage stop, so nothing is said about lost items."
    if not looks:
        return f"No look has been made yet; the rule {rule.name} is frozen for {_looks(rule.looks)} at {rule.m} items."
    opening = {
        "stopped": "Damage shown against base, and the run was stopped",
        "damaged": "Damage shown against base",
        "watch": "No damage shown against base, but the evidence is growing",
        "exhausted": f"No damage shown against base within {_looks(rule.looks)} as planned, and none is left to decide",
        "insufficient": f"No damage shown against base, and none could be, since {_why_insufficient(rule, base)}",
        "no_damage_shown": f"No damage shown against base after {_looks(len(looks))}",
    }[state]
    look = decided or looks[-1]
    counted = f"at step {look.step}, {look.lost:g} of {look.n} items were lost and {look.gained:g} gained"
    return f"{opening}: {counted} ({_statistic_words(rule, look.statistic)}; {_guarantee(rule)})."


def _why_insufficient(rule: Rule, base: BaseFacts | None) -> str:
    earliest = rule.earliest_stop(base.correct if base else None)
    if earliest is None:
        return "the base model answers too few items for this rule ever to decide"
    return f"this rule cannot decide before look {earliest}"


def _statistic_words(rule: Rule, value: float | None) -> str:
    if value is None:
        return "no statistic"
    match rule.name:
        case "eprocess":
            return f"e-process {value:.3g}, decides at {rule.threshold:g}"
        case "mcnemar_spending":
            return f"p = {value:.2g}, decides at {rule.threshold:.2g}"
    return f"a drop of {value:.3g} points, decides at {rule.threshold:g}"


def _guarantee(rule: Rule) -> str:
    match rule.name:
        case "eprocess":
            return f"the guarantee is about the pool's {rule.n_pool} items"
        case "mcnemar_spending":
            return f"the guarantee is about the pool's items, this panel of {rule.m}, taken as independent"
    return f"this rule has no error guarantee and speaks of the pool's items only, this panel of {rule.m}"


def _looks(count: int) -> str:
    return "1 look" if count == 1 else f"{count} looks"


def _rule(built: Rule, frozen: Mapping[str, Any], detects: Mapping[str, Any] | None) -> JsonDict:
    found = detects if detects is not None else frozen.get("detects") or {}
    numbers = {key: _number(value) for key, value in found.items()}
    return {**built.frozen(), "references": ["base"], "detects": {"points": None, "power": None, **numbers}}


def _number(value: Any) -> Any:
    """Turn a decimal string of a canonical document back into a number."""
    return float(value) if isinstance(value, str) else value


def _next_step(run: RunFacts, last: LookRow | None) -> int | None:
    if run.state in FINAL_STATES:
        return None
    return next((step for step in run.look_steps if last is None or step > last.step), None)


def _base(base: BaseFacts | None) -> JsonDict | None:
    if base is None:
        return None
    return {"accuracy": base.accuracy, "ci": [base.ci_low, base.ci_high], "noise_floor": base.noise_floor}


def _current(look: LookRow) -> JsonDict:
    return {"step": look.step, "accuracy": look.accuracy, "ci": [look.ci_low, look.ci_high]}


def _paired(look: LookRow) -> JsonDict:
    ds = sorted((float(drawn["d"]), str(drawn["item_id"])) for drawn in look.draw)
    delta, ci = paired_difference([(d, 1) for d, _ in ds])
    lost = sorted(item for d, item in ds if d > 0)
    gained = sorted(item for d, item in ds if d < 0)
    return {
        "n": look.n,
        "lost": look.lost,
        "gained": look.gained,
        "delta": delta,
        "ci": list(ci),
        "margin_rejected": look.rule_state.get("margin_rejected"),
        "interval": INTERVAL,
        "infra_failures": look.rule_state.get("infra", 0),
        "lost_items": lost[:ITEM_CAP],
        "lost_items_count": len(lost),
        "gained_items": gained[:ITEM_CAP],
        "gained_items_count": len(gained),
    }


def _evidence(rule: Rule, last: LookRow | None) -> JsonDict:
    return {
        "statistic": rule.statistic_name,
        "value": last.statistic if last else None,
        "threshold": rule.threshold,
        "decides": "at or below" if rule.name == "mcnemar_spending" else "at or above",
        "consecutive": rule.consecutive if isinstance(rule, Threshold) else 1,
    }


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
