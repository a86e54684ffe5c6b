"""The frozen document: what a train run states before its first look.

A train recipe without a document of its own gets an automatic one from its own rules. It is labelled exploratory, and
what is not known when it is frozen is stated as such; later facts (environment hashes) are amendments, never edits.
Timestamps are the local clock's until a timestamp token is attached.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from core.prespec.canonical import canonical_bytes, decimals_as_strings, tagged_hash

SCHEMA = "driftline/prespecification/1"
UNKNOWN = "not known at freeze"
NOT_STATED = "not stated"
LOCAL_CLOCK = "local clock only"
_KEY_TAG = b"driftline/draw-key/1\n"

FACTS = (
    "recipe_hash",
    "family_hash",
    "run_of_family",
    "rule",
    "datasets",
    "verifiers",
    "packages",
    "code_commit",
    "base_model_files",
    "decode",
    "claimed_at",
)


def automatic_document(recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the automatic document of a resolved train recipe. Decimals are strings, so it hashes as it is.

    ``facts`` may hold: recipe_hash, family_hash, run_of_family (k, counted from 1), rule (``damage.frozen`` or None when
    the recipe has no damage stop), datasets (a list of {name, split, items, merkle_root}), verifiers, packages,
    code_commit, base_model_files, decode, claimed_at. Absent facts are written as not known. Errors: ValueError for a
    name that is not in this list.
    """
    unknown = sorted(facts.keys() - set(FACTS))
    if unknown:
        raise ValueError(f"unknown fact {unknown[0]!r}; allowed: {', '.join(FACTS)}")
    rule = facts.get("rule")
    document = {
        "schema": SCHEMA,
        "label": "exploratory",
        "automatic": True,
        "clock": LOCAL_CLOCK,
        "claimed_at": _known(facts, "claimed_at"),
        "family": _family(facts),
        "data": {
            "status": "the held-out items' answers under training are not known; the base model's are not used to choose items",
            "pilots": NOT_STATED,
        },
        "hypotheses": _hypotheses(rule),
        "primary_endpoint": _endpoint(rule),
        "arms": [{"name": recipe.get("name") or "run", "recipe_hash": _known(facts, "recipe_hash")}],
        "analysis": _analysis(rule),
        "exclusions": _exclusions(rule),
        "sizes": _sizes(recipe, rule),
        "datasets": _known(facts, "datasets"),
        "locks": {
            "verifiers": _known(facts, "verifiers"),
            "packages": _known(facts, "packages"),
            "code_commit": _known(facts, "code_commit"),
            "base_model_files": _known(facts, "base_model_files"),
            "decode": facts.get("decode") or "greedy, as the recipe's prompt and looks blocks say",
        },
        "randomness": (
            "items of a look: the smallest HMAC-SHA256(key, look | checkpoint sha256 | item id), key from the frozen hash; "
            "training: streams keyed by (recipe seed, step, prompt, sample)"
        ),
        "outcomes": _outcomes(rule),
        "recipe": dict(recipe),
    }
    result: dict[str, Any] = decimals_as_strings(document)
    return result


def freeze_hash(document: Mapping[str, Any]) -> str:
    """Return the hash that freezes a document (hex SHA-256 of its canonical bytes, tagged)."""
    return tagged_hash(SCHEMA, canonical_bytes(document))


def draw_key(document_hash: str, token: bytes | None = None) -> bytes:
    """Return the 32-byte key of the draws, from the frozen document's hash and its timestamp token where there is one.

    With a token nobody, not even the operator, can know a draw before the token was issued.
    """
    material = bytes.fromhex(document_hash)
    if len(material) != hashlib.sha256().digest_size:
        raise ValueError("document_hash must be 64 hexadecimal digits")
    return hmac.digest(material, _KEY_TAG + (hashlib.sha256(token).digest() if token else b""), hashlib.sha256)


def _known(facts: Mapping[str, Any], name: str) -> Any:
    value = facts.get(name)
    return UNKNOWN if value is None else value


def _family(facts: Mapping[str, Any]) -> dict[str, Any]:
    k = facts.get("run_of_family")
    statement = f"run {k} of this recipe family" if k is not None else "its place in the recipe family is " + UNKNOWN
    return {"hash": _known(facts, "family_hash"), "run": _known(facts, "run_of_family"), "statement": statement}


def _hypotheses(rule: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if rule is None:
        return []
    effects = {
        "eprocess": rule.get("margin"),
        "mcnemar_spending": "any excess of lost over gained items",
        "threshold": rule.get("points"),
    }
    units = {"eprocess": "share of the pool's items", "mcnemar_spending": "items", "threshold": "percentage points"}
    return [
        {
            "statement": "during training the policy loses held-out items that the base model answered, net of gained ones",
            "direction": "loss",
            "smallest_effect": effects[rule["rule"]],
            "unit": units[rule["rule"]],
        }
    ]


def _endpoint(rule: Mapping[str, Any] | None) -> str:
    if rule is None:
        return "none: this recipe has no damage stop"
    return {
        "eprocess": "the first look at which the e-process reaches 1/alpha",
        "mcnemar_spending": "the first look at which the one-sided exact McNemar p is at most alpha/T",
        "threshold": "the first look that completes the consecutive drops",
    }[rule["rule"]]


def _analysis(rule: Mapping[str, Any] | None) -> dict[str, Any]:
    if rule is None:
        return {"rule": "none", "multiplicity": "no test is made"}
    multiplicity = {
        "eprocess": "valid at all looks at once by Ville's inequality",
        "mcnemar_spending": "alpha is split evenly over the planned looks",
        "threshold": "none: the rule has no error guarantee, only a simulated false-stop rate",
    }[rule["rule"]]
    return {"rule": dict(rule), "multiplicity": multiplicity, "references": ["base"]}


def _exclusions(rule: Mapping[str, Any] | None) -> str:
    if rule is None:
        return "none"
    policy = {
        "zero": "an item that the machinery failed to judge, also after a re-run, counts as unchanged and is reported",
        "refuse": "an item that the machinery failed to judge is asked again until it is judged",
    }
    return policy[rule["infra_failures"]]


def _sizes(recipe: Mapping[str, Any], rule: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "steps": recipe.get("max_steps", UNKNOWN),
        "seeds": [recipe.get("seed", 0)],
        "pool_items": rule["n_pool"] if rule else UNKNOWN,
        "items_per_look": rule["m"] if rule else UNKNOWN,
        "looks": rule["looks"] if rule else UNKNOWN,
    }


def _outcomes(rule: Mapping[str, Any] | None) -> dict[str, str]:
    if rule is None:
        return {"confirms": "nothing", "refutes": "nothing", "leaves_open": "whether held-out items were lost"}
    return {
        "confirms": "the rule decides at a look up to the last planned one: damage",
        "refutes": "nothing: a rule that does not decide has not shown that there is no damage",
        "leaves_open": "the rule does not decide: no damage shown against base; items outside the pool are not tested",
    }
