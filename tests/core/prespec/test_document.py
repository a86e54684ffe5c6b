"""The automatic document, its hash and the draw key."""

import json

import pytest

from core.damage.rules import frozen, make_rule, rule_from_frozen
from core.prespec.canonical import canonical_bytes, parse_document
from core.prespec.document import UNKNOWN, automatic_document, draw_key, freeze_hash

RECIPE = {"kind": "train", "name": "demo", "learning_rate": 1e-6, "max_steps": 12, "seed": 3, "tags": []}
RULE = make_rule({"rule": "eprocess", "m": 16}, 80, 3)
FACTS = {
    "recipe_hash": "ab" * 32,
    "family_hash": "cd" * 32,
    "run_of_family": 2,
    "rule": frozen(RULE),
    "datasets": [{"name": "chain_sum", "split": "holdout", "items": 80, "merkle_root": "ef" * 32}],
}


def test_it_states_what_the_specification_lists():
    document = automatic_document(RECIPE, FACTS)
    assert document["label"] == "exploratory"
    assert document["family"] == {"hash": "cd" * 32, "run": 2, "statement": "run 2 of this recipe family"}
    assert document["hypotheses"][0]["direction"] == "loss"
    assert document["hypotheses"][0]["smallest_effect"] == "0.01"
    assert document["sizes"] == {"steps": 12, "seeds": [3], "pool_items": 80, "items_per_look": 16, "looks": 3}
    assert document["arms"] == [{"name": "demo", "recipe_hash": "ab" * 32}]
    assert document["clock"] == "local clock only"
    assert rule_from_frozen(document["analysis"]["rule"]) == RULE
    listed = {
        "data",
        "hypotheses",
        "primary_endpoint",
        "arms",
        "analysis",
        "exclusions",
        "sizes",
        "datasets",
        "locks",
        "randomness",
        "outcomes",
    }
    assert listed <= document.keys()
    assert set(document["outcomes"]) == {"confirms", "refutes", "leaves_open"}


def test_what_is_not_known_is_stated_as_such():
    document = automatic_document(RECIPE, {"rule": frozen(RULE)})
    assert document["datasets"] == UNKNOWN
    assert document["locks"]["code_commit"] == document["locks"]["packages"] == document["family"]["run"] == UNKNOWN


@pytest.mark.parametrize("spec", [None, {"rule": "mcnemar_spending"}, {"rule": "threshold", "points": 5}])
def test_every_rule_and_none_has_a_document(spec):
    rule = frozen(make_rule(spec, 80, 3)) if spec else None
    document = automatic_document(RECIPE, {"rule": rule})
    assert canonical_bytes(document)
    assert document["analysis"]["rule"] == "none" if spec is None else document["hypotheses"]


def test_the_hash_survives_storage_as_text_and_as_json():
    document = automatic_document(RECIPE, FACTS)
    digest = freeze_hash(document)
    assert freeze_hash(parse_document(canonical_bytes(document))) == digest
    assert freeze_hash(json.loads(json.dumps(document))) == digest


def test_any_change_of_the_document_changes_the_hash():
    base = freeze_hash(automatic_document(RECIPE, FACTS))
    assert base != freeze_hash(automatic_document({**RECIPE, "seed": 4}, FACTS))
    assert base != freeze_hash(automatic_document(RECIPE, {**FACTS, "run_of_family": 3}))
    assert base != freeze_hash(
        automatic_document(RECIPE, {**FACTS, "rule": frozen(make_rule({"rule": "eprocess", "m": 17}, 80, 3))})
    )


def test_an_unknown_fact_is_refused_by_name():
    with pytest.raises(ValueError, match="code_comit"):
        automatic_document(RECIPE, {"code_comit": "abc"})


def test_the_draw_key_follows_from_hash_and_token():
    one = draw_key("ab" * 32)
    assert len(one) == 32
    assert one == draw_key("ab" * 32)
    assert len({one, draw_key("ac" * 32), draw_key("ab" * 32, b"token"), draw_key("ab" * 32, b"other")}) == 4


@pytest.mark.parametrize("bad", ["", "zz", "ab"])
def test_a_key_from_anything_but_a_hash_is_refused(bad):
    with pytest.raises(ValueError):  # noqa: PT011
        draw_key(bad)
