"""What vLLM is planned to take, by hand on a small shape."""

import pytest

from core.planning.engine import (
    BLOCK,
    GRAPHS_BYTES,
    PREFILL_TOKENS,
    Demand,
    decoding,
    eval_demand,
    runs_on_vllm,
    train_demand,
)
from core.planning.memory import eval_memory, train_memory
from core.recipes import parse_recipe
from core.recipes.catalogue import MODELS

FACTS = MODELS["smollm2-135m"]
TRAIN = {
    "kind": "train",
    "model": "smollm2-135m",
    "data": "gsm8k",
    "max_steps": 10,
    "prompts_per_step": 64,
    "num_generations": 8,
    "max_prompt_length": 100,
    "max_completion_length": 400,
}
EVAL = {"kind": "eval", "model": "smollm2-135m", "suites": ["gsm8k"], "batch_size": 32}


@pytest.mark.parametrize(
    ("engine", "device", "vllm"),
    [("auto", "cuda", True), ("auto", "cpu", False), ("vllm", "cpu", True), ("transformers", "cuda", False)],
)
def test_auto_is_planned_as_vllm_on_a_card(engine, device, vllm):
    for recipe in (TRAIN, EVAL):
        assert runs_on_vllm(parse_recipe({**recipe, "engine": engine, "device": {"kind": device}})) is vllm


def test_the_cache_holds_what_is_asked_up_to_what_memory_allows():
    recipe = parse_recipe(TRAIN)
    assert train_demand(recipe, 10**9) == Demand(500, 256, 256 * 500 + BLOCK * 257)
    assert train_demand(recipe, 40_000) == Demand(500, 256, 40_000 + BLOCK * 257)
    assert train_demand(recipe, 100).cache_tokens == 500 + BLOCK * 257
    longer = parse_recipe(
        {**TRAIN, "data": {"dataset": "gsm8k", "holdout": 100}, "looks": {"every": 5, "max_completion_length": 900}}
    )
    assert train_demand(longer, 10**9).length == 1000
    assert eval_demand(parse_recipe(EVAL), 10**9) == Demand(3072, 32, 32 * 3072 + BLOCK * 33)


def test_decoding_counts_cache_workspace_and_logits():
    phase = decoding(FACTS, Demand(500, 10, 6000), 2, 23_040)
    assert phase["kv_cache"] == 6000 * 23_040
    assert phase["decode_logits"] == 3 * 10 * 49_152 * 4
    assert phase["engine_workspace"] == PREFILL_TOKENS * (3 * 1536 + 2 * 576 + 4 * 576) * 2


def test_the_sleeping_engine_keeps_its_graphs_on_a_card_and_everything_on_a_cpu():
    card = train_memory(parse_recipe({**TRAIN, "engine": "vllm"}), FACTS, 8000, 40_000)
    assert card.static["engine_graphs"] == GRAPHS_BYTES
    assert card.phases["rollout"]["engine_weights"] == 2 * FACTS.parameters
    assert not {"engine_weights", "kv_cache"} & {*card.phases["backward"], *card.static}
    cpu = train_memory(parse_recipe({**TRAIN, "engine": "vllm", "device": {"kind": "cpu"}}), FACTS, 8000, 40_000)
    assert cpu.static["engine_weights"] == 4 * FACTS.parameters
    assert "kv_cache" in cpu.static
    assert "kv_cache" not in cpu.phases["rollout"]


def test_an_evaluation_holds_one_copy_of_the_weights():
    memory = eval_memory(parse_recipe({**EVAL, "engine": "vllm"}), FACTS, 40_000)
    assert memory.static["weights"] == 2 * FACTS.parameters
    assert "engine_weights" not in memory.phases["generation"]
