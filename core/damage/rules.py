"""From a recipe's ``damage_stop`` block to a frozen rule, and back from the frozen form.

The choice of a rule, its defaults and the refusal of impossible specifications live here; the rules' arithmetic lives in
``eprocess``, ``mcnemar`` and ``threshold``.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from core.damage.eprocess import EProcess
from core.damage.kinds import Rule
from core.damage.mcnemar import McNemarSpending
from core.damage.observations import InfraPolicy, JsonDict, RuleError
from core.damage.simulate import detects
from core.damage.threshold import Threshold

__all__ = ["ACTIONS", "INFRA_POLICIES", "RULES", "Rule", "frozen", "make_rule", "rule_from_frozen"]

RULES = (EProcess.name, McNemarSpending.name, Threshold.name)
ACTIONS = ("stop", "warn")
INFRA_POLICIES = ("zero", "refuse")
DEFAULT_M = 200
EPROCESS_POOL_FACTOR = 5
EPROCESS_MIN_M = 64

_BLOCK_FIELDS = ("rule", "action", "alpha", "margin", "watch", "points", "consecutive", "infra_failures", "suites")
_LOOK_FIELDS = ("m", "base_runs")


def make_rule(spec: Mapping[str, Any], n_pool: int, planned_looks: int) -> Rule:
    """Build the rule that ``spec`` asks for, over a pool of ``n_pool`` items and ``planned_looks`` looks (T).

    ``spec`` holds the fields of the recipe's ``damage_stop`` block (rule, action, alpha, margin, watch, points,
    consecutive; also infra_failures: zero | refuse, and suites: among how many alpha is split), and ``m`` and
    ``base_runs`` of its ``looks`` block. Absent and null fields take the defaults; fields of other rules are not read.
    Without a named rule, ``eprocess`` is taken when N >= 5m and m >= 64, else ``mcnemar_spending``. Errors:
    :class:`RuleError` naming the field.
    """
    unknown = sorted(spec.keys() - {*_BLOCK_FIELDS, *_LOOK_FIELDS})
    if unknown:
        allowed = ", ".join((*_BLOCK_FIELDS, *_LOOK_FIELDS))
        raise RuleError(f"damage_stop.{unknown[0]}", "unknown field.", f"Allowed: {allowed}.")
    given = {key: value for key, value in spec.items() if value is not None}
    if n_pool < 1:
        raise RuleError("data.holdout", f"the pool holds {n_pool} items.", "Hold out at least one item.")
    if planned_looks < 1:
        raise RuleError("looks.every", "no look is planned.", "Choose looks.every <= max_steps.")
    name = _one_of(given.get("rule", _automatic(given, n_pool)), RULES, "damage_stop.rule")
    rule = _build(name, given, n_pool, planned_looks)
    if rule.earliest_stop() is None:
        raise RuleError("looks.m", _never(rule), "Ask more items, plan fewer looks, or choose another rule.")
    return rule


def frozen(rule: Rule) -> JsonDict:
    """Return the rule as plain JSON for the prespecification: its parameters, and what it ``detects`` by simulation.

    The simulation assumes a base accuracy of 60 % and a gained share of 5 %, and says so beside its figures. It takes a
    few tenths of a second for one rule and is remembered.
    """
    return {**rule.frozen(), "detects": detects(rule)}


def rule_from_frozen(document: Mapping[str, Any]) -> Rule:
    """Rebuild the rule from :func:`frozen`, also when decimals have become strings in a canonical document."""
    name = _one_of(document.get("rule"), RULES, "rule")
    kinds: dict[str, type[EProcess] | type[McNemarSpending] | type[Threshold]] = {
        EProcess.name: EProcess,
        McNemarSpending.name: McNemarSpending,
        Threshold.name: Threshold,
    }
    kind = kinds[name]
    values: dict[str, Any] = {}
    for field in (item.name for item in fields(kind)):
        if field not in document:
            raise RuleError(f"rule.{field}", "missing in the frozen rule.")
        value = document[field]
        values[field] = float(value) if field in ("alpha", "margin", "watch", "points") else value
    return kind(**values)


def _automatic(given: Mapping[str, Any], n_pool: int) -> str:
    m = _fresh_m(given, n_pool)
    return EProcess.name if n_pool >= EPROCESS_POOL_FACTOR * m and m >= EPROCESS_MIN_M else McNemarSpending.name


def _fresh_m(given: Mapping[str, Any], n_pool: int) -> int:
    """Return the number of items of a fresh draw: as given, else a fifth of the pool and at most 200."""
    default = max(1, min(DEFAULT_M, n_pool // EPROCESS_POOL_FACTOR))
    return _integer(given.get("m", default), "looks.m", low=1, high=n_pool)


def _build(name: str, given: Mapping[str, Any], n_pool: int, looks: int) -> Rule:
    action = _one_of(given.get("action", "stop"), ACTIONS, "damage_stop.action")
    infra = cast(
        InfraPolicy, _one_of(given.get("infra_failures", "zero"), INFRA_POLICIES, "damage_stop.infra_failures")
    )
    base_runs = _integer(given.get("base_runs", 2), "looks.base_runs", low=1, high=100)
    suites = _integer(given.get("suites", 1), "damage_stop.suites", low=1, high=100)
    alpha = _number(given.get("alpha", 0.05), "damage_stop.alpha", low=0.0, high=0.5) / suites
    watch = _number(given.get("watch", 5.0), "damage_stop.watch", low=1.0, high=math.inf)
    if name == EProcess.name:
        if base_runs < 2:
            raise RuleError("looks.base_runs", "eprocess needs at least two base runs.", "Set looks.base_runs to 2.")
        margin = _number(given.get("margin", 0.01), "damage_stop.margin", low=0.0, high=1.0, low_allowed=True)
        m = _fresh_m(given, n_pool)
        return EProcess(n_pool, m, looks, alpha, margin, watch, action, infra, base_runs)
    m = _integer(given.get("m", n_pool), "looks.m", low=1, high=n_pool)
    if name == McNemarSpending.name:
        return McNemarSpending(n_pool, m, looks, alpha, watch, action, infra, base_runs)
    points = _number(given.get("points", 5.0), "damage_stop.points", low=0.0, high=100.0, high_allowed=True)
    consecutive = _integer(given.get("consecutive", 2), "damage_stop.consecutive", low=1, high=looks)
    return Threshold(n_pool, m, looks, points, consecutive, action, infra, base_runs)


def _never(rule: Rule) -> str:
    return f"with {rule.m} items and {rule.looks} looks the rule {rule.name} could not decide even if every item were lost."


def _one_of(value: Any, allowed: tuple[str, ...], param: str) -> str:
    if value not in allowed:
        raise RuleError(param, f"{value!r} is not known.", f"Allowed: {', '.join(allowed)}.")
    return str(value)


def _integer(value: Any, param: str, *, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RuleError(param, f"{value!r} is not allowed.", f"It must be a whole number in {low}..{high}.")
    return value


def _number(
    value: Any, param: str, *, low: float, high: float, low_allowed: bool = False, high_allowed: bool = False
) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good:
        good = (value > low or (low_allowed and value == low)) and (value < high or (high_allowed and value == high))
    if not good:
        brackets = ("[" if low_allowed else "(", "]" if high_allowed else ")")
        raise RuleError(
            param, f"{value!r} is not allowed.", f"It must lie in {brackets[0]}{low:g}, {high:g}{brackets[1]}."
        )
    return float(value)
