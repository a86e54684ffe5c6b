"""Resolution is idempotent, and hashes depend on the meaning of a recipe and on nothing else."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.recipes import RecipeError, canonical_bytes, family_hash, load_recipe, parse_recipe, recipe_hash, resolved

algorithms = st.sampled_from(
    ["grpo", "rloo", "centered", "gspo", "dr_grpo", "dapo", "reinforce_plus_plus"]
) | st.fixed_dictionaries(
    {"name": st.sampled_from(["grpo", "gspo"])},
    optional={
        "std": st.sampled_from(["sample", "population", "none", False, None, 0]),
        "clip_low": st.floats(0, 1),
        "kl": st.floats(0, 1) | st.fixed_dictionaries({"coef": st.floats(0, 1)}),
        "entropy_coef": st.sampled_from([0, 0.0, 0.001]),
        "dual_clip": st.none() | st.floats(1.5, 10),
    },
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """A valid train recipe, spelt in one of many ways."""
    update = draw(st.integers(1, 8))
    recipe: dict[str, Any] = {
        "kind": "train",
        "model": draw(st.sampled_from(["smollm2-135m", "Qwen/Qwen3-0.6B", "run:7f3a/step-20"])),
        "data": draw(
            st.sampled_from(["gsm8k", {"dataset": "math", "holdout": 300}, {"dataset": "reasoning_gym:chain_sum"}])
        ),
        "max_steps": draw(st.integers(20, 300)),
        "prompts_per_step": update * draw(st.integers(1, 4)),
        "num_generations": draw(st.integers(2, 16)),
        "max_completion_length": draw(st.integers(1, 2048)),
    }
    optional = {
        "prompts_per_update": st.just(update),
        "algorithm": algorithms,
        "name": st.sampled_from(["a", "my run"]),
        "prompt": st.fixed_dictionaries({}, optional={"suffix": texts, "system": texts | st.none(), "prefill": texts}),
        "learning_rate": st.floats(0, 1e-3) | st.integers(0, 1),
        "optimizer": st.sampled_from(["adamw", "sgd", {"name": "sgd", "momentum": 0.9}]),
        "device": st.sampled_from([{"kind": "cpu"}, {"kind": "cpu", "memory_gib": 6}, {"memory_gib": 24}]),
        "looks": st.sampled_from(
            [10, {"every": 5, "suites": ["holdout", "math500"]}, {"every": 20, "m": 50}, None, False]
        ),
        "save": st.sampled_from([5, {"every": 10, "keep": 3}]),
        "linearity": st.sampled_from(["off", "live", False]),
        "rewards": st.sampled_from([{"auto": 1}, {"auto": 1.0, "length": -0.5}]),
        "seed": st.integers(0, 2**53 - 1),
        "tags": st.sampled_from([[], ["a"], ["b", "a"]]),
    }
    recipe |= {key: draw(value) for key, value in optional.items() if draw(st.booleans())}
    if recipe.get("looks"):
        recipe |= draw(
            st.sampled_from([{}, {"damage_stop": "eprocess"}, {"damage_stop": {}}, {"damage_stop": "threshold"}])
        )
    return recipe


@given(recipes())
@settings(max_examples=60, deadline=None)
def test_resolving_a_resolved_recipe_changes_nothing(raw: dict[str, Any]) -> None:
    once = resolved(parse_recipe(raw))
    again = parse_recipe(json.dumps(once))
    assert resolved(again) == once
    assert recipe_hash(again) == recipe_hash(parse_recipe(raw))
    assert load_recipe(once) == again


def shuffled(value: Any, draw: Any) -> Any:
    if isinstance(value, dict):
        keys = draw(st.permutations(sorted(value)))
        return {key: shuffled(value[key], draw) for key in keys}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


@given(recipes(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_hash_ignores_key_order_white_space_and_spelt_out_defaults(
    raw: dict[str, Any], data: st.DataObject
) -> None:
    expected = recipe_hash(parse_recipe(raw))
    reordered = shuffled(raw, data.draw)
    indent = data.draw(st.sampled_from([None, 0, 1, 7]))
    assert (
        recipe_hash(parse_recipe(json.dumps(reordered, indent=indent, ensure_ascii=data.draw(st.booleans()))))
        == expected
    )
    full = resolved(parse_recipe(raw))
    spelt = {key: full[key] for key in full if key in raw or data.draw(st.booleans())}
    assert recipe_hash(parse_recipe(shuffled({**full, **spelt}, data.draw))) == expected
    assert (
        recipe_hash(parse_recipe({**raw, **{key: full[key] for key in full if data.draw(st.booleans())}})) == expected
    )


@given(recipes(), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_family_ignores_seed_name_tags_and_priority_alone(raw: dict[str, Any], seed: int) -> None:
    recipe = parse_recipe(raw)
    sibling = parse_recipe({**raw, "seed": seed, "name": "other", "tags": ["x"], "priority": 7})
    cousin = parse_recipe({**raw, "max_steps": raw["max_steps"] + 1})
    assert family_hash(sibling) == family_hash(recipe)
    assert recipe_hash(sibling) != recipe_hash(recipe)
    assert family_hash(cousin) != family_hash(recipe)


@pytest.mark.parametrize(("key", "value"), [
    ("learning_rate", 2e-6), ("seed", 1), ("tags", ["x"]), ("algorithm", "rloo"), ("max_prompt_length", 1000),
    ("save", 10), ("weight_decay", 1e-12), ("prompt", {"suffix": " "}),
])  # fmt: skip
def test_any_other_value_is_another_hash(key: str, value: Any, train: dict[str, Any]) -> None:
    assert recipe_hash(parse_recipe({**train, key: value})) != recipe_hash(parse_recipe(train))


def test_the_hash_is_the_domain_tag_and_the_canonical_bytes(train: dict[str, Any]) -> None:
    recipe = parse_recipe(train)
    sorted_keys = json.dumps(
        resolved(parse_recipe({**train, "learning_rate": 1})), sort_keys=True, separators=(",", ":")
    )
    assert b'"learning_rate":1,' in canonical_bytes(resolved(parse_recipe({**train, "learning_rate": 1})))
    assert '"learning_rate":1.0,' in sorted_keys  # what plain json.dumps would have hashed
    expected = hashlib.sha256(b"driftline/recipe/1\n" + canonical_bytes(resolved(recipe))).hexdigest()
    assert recipe_hash(recipe) == expected


def test_canonical_bytes_are_those_of_rfc_8785() -> None:
    # The sample of RFC 8785, section 3.2.3 (numbers and key order), typed by hand.
    obj = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "literals": [None, True, False],
    }
    assert canonical_bytes(obj) == b'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}'
    assert (
        canonical_bytes({"\U0001f600": 1, "\ufb33": 2, "\u20ac": 3})
        == '{"\u20ac":3,"\U0001f600":1,"\ufb33":2}'.encode()
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(recipes(), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_stands_in_a_field_the_answer_is_a_recipe_or_a_recipe_error(
    raw: dict[str, Any], data: st.DataObject
) -> None:
    full = resolved(parse_recipe(raw))
    target: dict[str, Any] = full
    key = data.draw(st.sampled_from(sorted(full)))
    while isinstance(target[key], dict) and target[key] and data.draw(st.booleans()):
        target = target[key]
        key = data.draw(st.sampled_from(sorted(target)))
    target[data.draw(st.sampled_from([key, key + "x", "n", "a.b"]))] = data.draw(json_values)
    try:
        recipe = parse_recipe(full)
    except RecipeError as error:
        problems = error.problems
    else:
        assert resolved(parse_recipe(resolved(recipe))) == resolved(recipe)
        return
    assert all(problem.message and problem.hint for problem in problems)
