"""The ``rewards`` block: named terms with weights, what each kind of term can be told, and names of own functions.

A bare number stands for ``{"weight": number}``. It opens no file: whether an own function's file is there is asked where the
operator's folder is known (`core.tasks.reward_files`).
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from core.recipes.base import Block, Options
from core.recipes.catalogue import REWARD_TERMS, SHAPING_TERMS
from core.recipes.errors import allowed, did_you_mean, refuse

FILE = "file:"
_FUNCTION = re.compile(r"file:([A-Za-z0-9][A-Za-z0-9_-]{0,99}\.py):([A-Za-z_][A-Za-z0-9_]{0,99})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OWN_FORM = "file:NAME.py:FUNCTION (in the operator's reward folder)"

# Which options belong to which term, with their defaults; a weight belongs to all.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "length": {"per": 1000, "free": 0},
    "format": {"think": False},
    "random": {"probability": 0.5},
    FILE: {"arguments": {}, "sha256": None},
}


def _hex(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise refuse(f"{text[:80]!r} is not a SHA-256", "64 lowercase hexadecimal digits, or leave it out")
    return text


class RewardTerm(Block):
    """One term. ``weight`` 0 logs only; what is null has the term's default.

    ``per`` and ``free`` belong to ``length``: minus (tokens - free) / per, never above 0 (1000 and 0). ``think`` belongs to
    ``format``: whether one ``<think>...</think>`` must come before the answer. ``probability`` of a 1 belongs to ``random``
    (0.5). ``arguments`` are keyword arguments of an own function and ``sha256`` its file's hash, filled in when the recipe is
    accepted.
    """

    weight: Annotated[float, Field(ge=-1e6, le=1e6)]
    per: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    free: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    think: bool | None = None
    probability: Annotated[float, Field(ge=0, le=1)] | None = None
    arguments: Options | None = None
    sha256: Annotated[str, AfterValidator(_hex)] | None = None

    @model_serializer(mode="wrap")
    def _only_what_is_said(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Options of other terms are left out of the stored recipe."""
        return {name: value for name, value in plain(self).items() if value is not None}

    def filled(self, term: str) -> "RewardTerm":
        """The same with the defaults of ``term``'s own options written down."""
        defaults = _DEFAULTS.get(FILE if term.startswith(FILE) else term, {})
        return self.model_copy(update={name: value for name, value in defaults.items() if getattr(self, name) is None})


def _weighted(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"weight": value}
    if not isinstance(value, dict | RewardTerm):
        raise refuse(f"{value!r} is no weight", 'a number, or an object such as {"weight": 1.0}')
    return value


def own_function(term: str) -> tuple[str, str] | None:
    """Return the file's and the function's name of a term ``file:NAME.py:FUNCTION``, None for any other term."""
    match = _FUNCTION.fullmatch(term)
    return (match[1], match[2]) if match else None


def gated(term: str) -> bool:
    """Whether ``outcome_gate`` concerns the term: all but the verifiers, which are the outcome."""
    return term in SHAPING_TERMS or term.startswith(FILE)


def _terms(terms: dict[str, RewardTerm]) -> dict[str, RewardTerm]:
    for term, spec in terms.items():
        if term.startswith(FILE) and own_function(term) is None:
            raise refuse(f"{term!r} does not name a function", f"write {_OWN_FORM}: plain names, no folders")
        if not term.startswith(FILE) and term not in REWARD_TERMS:
            raise refuse(
                f"the reward term {term!r} is not known",
                f"{did_you_mean(term, REWARD_TERMS)}allowed: {allowed(REWARD_TERMS)}, {_OWN_FORM}",
            )
        known = _DEFAULTS.get(FILE if term.startswith(FILE) else term, {})
        for option in spec.model_fields_set - {"weight", *known}:
            if getattr(spec, option) is not None:
                raise refuse(f"{term} has no option {option!r}", f"allowed: {allowed(('weight', *known))}")
    if not any(spec.weight != 0 for spec in terms.values()):
        raise refuse(
            "no reward term has a weight, so nothing can be learnt", 'give a term a weight, such as {"auto": 1.0}'
        )
    return terms


TermField = Annotated[RewardTerm, BeforeValidator(_weighted, json_schema_input_type=float | RewardTerm)]
Rewards = Annotated[dict[str, TermField], Field(min_length=1, max_length=64), AfterValidator(_terms)]


def default_rewards() -> dict[str, RewardTerm]:
    """The items' own verifier alone."""
    return {"auto": RewardTerm(weight=1.0)}
