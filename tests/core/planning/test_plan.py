"""Plans by hand-made arithmetic: a model small enough to add up on paper, and the cards people own."""

from pathlib import Path
from typing import Any

import pytest

from core.planning import Card, PlanError, estimate, model_facts, plan
from core.planning.checkpointing import CUBLAS_BYTES
from core.planning.cost import checkpoint_bytes, checkpoint_count, disk_bytes, look_items
from core.planning.memory import (
    CUDA_CONTEXT_BYTES,
    GIB,
    HOST_BYTES,
    PROCESS_BYTES,
    adapter_parameters,
    kv_bytes_per_token,
    saved_per_layer,
    train_memory,
)
from core.recipes import TrainRecipe, parse_recipe
from core.recipes.models import ModelFacts
from core.recipes.train import Lora

# Two layers, hidden 8, MLP 16, 2 heads of 4, 1 key/value head, 32 words, tied. By hand:
# attention 8*8 + 2*8*4 + 8*8 = 192, MLP 3*8*16 = 384, norms 16: 592 a layer; 2*592 + 32*8 + 8 = 1448 parameters.
TINY = ModelFacts("llama", 2, 8, 16, 2, 1, 4, 32, True)
BASE: dict[str, Any] = {
    "kind": "train",
    "model": "smollm2-135m",
    "data": "gsm8k",
    "max_steps": 10,
    "prompts_per_step": 4,
    "num_generations": 2,
    "max_prompt_length": 6,
    "max_completion_length": 10,
    "logit_chunk_tokens": 5,
    "save": {"every": 4},
    "device": {"kind": "cpu", "memory_gib": 4},
}


def recipe(**fields: Any) -> TrainRecipe:
    parsed = parse_recipe({**BASE, **fields})
    assert isinstance(parsed, TrainRecipe)
    return parsed


def test_the_tiny_models_parameters_are_as_added_by_hand() -> None:
    assert TINY.layer_parameters == 592
    assert TINY.parameters == 1448


def test_fp32_on_a_cpu_by_component() -> None:
    memory = train_memory(recipe(), TINY, 32)
    assert memory.static == {
        "weights": 1448 * 4,
        "gradients": 1448 * 4,
        "masters": 0,  # the weights are their own masters
        "moments": 1448 * 8,
        "reference": 1448 * 4,
        "process": PROCESS_BYTES,
    }
    # A token of a layer: 8*(8+16) + 4*16*4 + 4*8*4 + 4*2 + a mask of 16 keys * 4 + 8 = 656; two layers, nothing recomputed.
    assert memory.phases["backward"] == {
        "activations": 2 * 32 * 656,
        "backward_workspace": 32 * (3 * 16 + 2 * 8 + 4 * 8) * 4,
        "hidden_states": 3 * 32 * 8 * 4,
        "logit_chunk": 3 * 5 * 32 * 4,
    }
    # 8 samples of 16 tokens; a token is 2 layers * 2 * 1 head * 4 * 4 bytes = 64 bytes.
    assert memory.phases["rollout"] == {"kv_cache": 8 * 16 * 64, "decode_logits": 3 * 8 * 32 * 4}
    assert memory.phases["step"] == {"optimizer_workspace": 3 * 32 * 8 * 4}
    assert memory.peak == sum(memory.static.values()) + 2 * 32 * 656 + 32 * 96 * 4 + 3072 + 1920
    assert (memory.pinned, memory.host) == (0, 0)


def test_bf16_on_a_card_by_component() -> None:
    memory = train_memory(recipe(device={"kind": "cuda"}, engine="transformers"), TINY, 32)
    assert memory.static == {
        "weights": 1448 * 2,
        "gradients": 1448 * 2,
        "masters": 1448 * 4,
        "moments": 1448 * 8,
        "cuda_context": CUDA_CONTEXT_BYTES,
    }
    # A token of a kept layer: 2*(4*8 + 2*8 + 2*4 + 2*16) + 4*(2+2) = 192, of a layer's work 2*(3*16 + 3*8) = 144. All layers
    # checkpointed: two inputs of 16 bytes, one layer held again, its work. The head's moment has a chunk of logits instead.
    assert memory.phases["backward"]["activations"] == 32 * (2 * 16 + 192 + 144) + CUBLAS_BYTES
    kept = train_memory(recipe(device={"kind": "cuda"}, engine="transformers"), TINY, 32, layers=0)
    assert kept.phases["backward"]["activations"] == 32 * (2 * 192 + 144) + CUBLAS_BYTES
    # The frozen start model comes over from page-locked memory to score the samples.
    assert memory.phases["score"]["reference"] == 1448 * 2
    assert memory.pinned == 1448 * 2
    assert memory.host == HOST_BYTES + 8 * 1448 + 1448 * 2


@pytest.mark.parametrize(
    ("optimizer", "masters", "moments", "pinned"),
    [
        ("adamw", 4 * 1448, 8 * 1448, 0),
        ("adamw_offload", 0, 0, 12 * 1448),
        ("adamw_8bit", 4 * 1448, 2 * 1448 + 2 * 4 * 6, 0),  # 6 blocks of 256
        ("sgd", 4 * 1448, 0, 0),
        ({"name": "sgd", "momentum": 0.9}, 4 * 1448, 4 * 1448, 0),
    ],
)
def test_an_optimizers_state(optimizer: Any, masters: int, moments: int, pinned: int) -> None:
    memory = train_memory(recipe(device={"kind": "cuda"}, optimizer=optimizer), TINY, 32)
    # The resting reference is page-locked too.
    assert (memory.static["masters"], memory.static["moments"]) == (masters, moments)
    assert memory.pinned == pinned + 2 * 1448


def test_adapters_by_hand() -> None:
    # Per layer and rank: q 8+8, k 8+4, v 8+4, o 8+8, gate 8+16, up 8+16, down 16+8 = 128.
    assert adapter_parameters(TINY, Lora(r=3)) == 2 * 3 * 128
    memory = train_memory(recipe(device={"kind": "cuda"}, lora={"r": 3}), TINY, 32)
    assert memory.static["gradients"] == 768 * 2
    assert (memory.phases["score"]["reference"], memory.pinned) == (0, 0)
    # Queries alone: r (8 + 8) a layer.
    assert adapter_parameters(TINY, Lora(r=3, targets=("q_proj",))) == 2 * 3 * 16
    assert memory.static["weights"] == (1448 + 768) * 2


def test_norms_on_queries_and_keys_are_counted() -> None:
    qwen3 = ModelFacts("qwen3", 2, 8, 16, 2, 1, 4, 32, True, qk_norm=True)
    assert saved_per_layer(qwen3, 1, 16, 2) - saved_per_layer(TINY, 1, 16, 2) == (8 + 4) * (4 + 2) + 4 * (2 + 1)
    assert qwen3.parameters == 1448 + 2 * 8


def test_a_key_value_token_of_a_known_model() -> None:
    # Qwen2.5-1.5B: 28 layers, 2 key/value heads of 128: 28 * 2 * 2 * 128 * 2 bytes = 28 KiB.
    assert kv_bytes_per_token(model_facts("Qwen/Qwen2.5-1.5B"), 2) == 28 * 1024


def test_checkpoints_and_their_disk() -> None:
    # Steps 0, 4, 8 and the last, 10.
    assert checkpoint_count(recipe()) == 4
    assert checkpoint_count(recipe(save={"every": 5})) == 3
    assert checkpoint_count(recipe(save={"every": 1, "keep": 2})) == 3
    small = 4 * 2**20
    assert checkpoint_bytes(recipe(), TINY) == 12 * 1448 + small
    assert checkpoint_bytes(recipe(save={"every": 4, "optimizer": False}), TINY) == 4 * 1448 + small
    assert checkpoint_bytes(recipe(optimizer="sgd"), TINY) == 4 * 1448 + small
    # Weights alone, but for the newest and the one being written.
    assert disk_bytes(recipe(), TINY) == 5 * (12 * 1448 + small)
    assert disk_bytes(recipe(save={"every": 4, "optimizer": False}), TINY) == 5 * (4 * 1448 + small) + 2 * 8 * 1448
    # The measured checkpoint of the demo's model is 1.54 GB.
    assert checkpoint_bytes(recipe(), model_facts("smollm2-135m")) / 1e9 == pytest.approx(1.61, rel=0.06)


def test_cost_counts_samples_updates_looks_and_tokens() -> None:
    r = recipe(
        max_steps=12,
        prompts_per_update=2,
        data={"dataset": "gsm8k", "holdout": 80},
        looks={"every": 4, "m": 16, "max_completion_length": 7},
        damage_stop="eprocess",
    )
    cost = estimate(r, TINY)
    assert cost.samples == 12 * 4 * 2
    assert cost.updates == 24
    assert cost.looks == 3
    assert cost.look_items == 2 * 80 + 3 * 16
    assert cost.tokens_generated == 96 * 10 + 208 * 7
    assert cost.checkpoints == 4
    assert look_items(recipe(looks={"every": 5, "suites": ["file:mine.jsonl"]})) is None
    assert estimate(recipe(), TINY).looks == 0


def gsm8k(model: str, **fields: Any) -> TrainRecipe:
    lengths = {"max_prompt_length": 1024, "max_completion_length": 2048, "logit_chunk_tokens": 512}
    cuda = {"device": {"kind": "cuda", "memory_gib": 24}, "engine": "transformers"}
    return recipe(model=model, prompts_per_step=32, num_generations=8, **{**lengths, **cuda, **fields})


def test_a_1_5b_model_fits_24_gib_with_offloading_only() -> None:
    card = Card(24, "NVIDIA GeForce RTX 4090")
    on_card = plan(gsm8k("Qwen/Qwen2.5-1.5B-Instruct"), card)
    assert not on_card.fits
    # 1.544 B parameters: bf16 weights and gradients 2 * 2.875, masters 5.75, moments 11.5 GiB.
    assert on_card.components_gib["weights"] == pytest.approx(2.875, abs=0.001)
    assert on_card.components_gib["moments"] == pytest.approx(11.502, abs=0.001)
    assert on_card.smallest_change == "optimizer adamw_offload"
    offloaded = plan(gsm8k("Qwen/Qwen2.5-1.5B-Instruct", optimizer="adamw_offload"), card)
    assert offloaded.fits
    assert offloaded.smallest_change is None
    assert offloaded.pinned_gib == pytest.approx((12 + 2) * 1_543_714_304 / GIB, abs=0.001)
    assert offloaded.host_gib > offloaded.pinned_gib


def test_the_smallest_change_fits_when_it_is_made() -> None:
    card = Card(24, "card")
    wide = gsm8k("Qwen/Qwen2.5-0.5B", micro_batch_tokens=200_000)
    change = plan(wide, card).smallest_change
    assert change == "micro_batch_tokens 3072"  # 200,000 tokens' layer inputs and logits alone are too much
    assert plan(gsm8k("Qwen/Qwen2.5-0.5B", micro_batch_tokens=3072), card).fits
    tight = Card(10, "card")
    change = plan(gsm8k("Qwen/Qwen2.5-0.5B", logit_chunk_tokens=3072), tight).smallest_change
    assert change == "logit_chunk_tokens 768"
    assert plan(gsm8k("Qwen/Qwen2.5-0.5B", logit_chunk_tokens=768), tight).fits
    assert not plan(gsm8k("Qwen/Qwen2.5-0.5B", logit_chunk_tokens=1536), tight).fits
    adapters = plan(gsm8k("Qwen/Qwen2.5-7B"), card)
    assert adapters.smallest_change == 'lora {"r": 16}'
    # A checkpoint of adapters is the whole effective model and the adapters beside it.
    with_adapters = recipe(lora={"r": 3}, save={"every": 4, "optimizer": False})
    assert checkpoint_bytes(with_adapters, TINY) == 4 * (1448 + 768) + 4 * 2**20
    assert plan(gsm8k("Qwen/Qwen2.5-7B", lora={"r": 16}), card).fits


def test_the_decoding_batch_shrinks_before_anything_is_changed() -> None:
    # 24 layers of 32 key/value heads of 64 in bf16: 192 KiB a token, 24 GiB for 131,072 tokens.
    wide = gsm8k("HuggingFaceTB/SmolLM2-1.7B-Instruct", optimizer="adamw_offload")
    planned = plan(wide, Card(24, "card"))
    assert planned.fits
    assert planned.rollout_tokens == 65_536
    assert planned.components_gib["kv_cache"] == pytest.approx(21 * 3072 * 192 / 2**20, abs=0.001)


def test_a_long_completion_is_shortened_where_nothing_smaller_helps() -> None:
    # One sequence of 8,024 tokens: its activations alone are too much for what the weights leave of 11 GiB.
    fields: dict[str, Any] = {"optimizer": "adamw_offload", "max_completion_length": 7000, "logit_chunk_tokens": 64}
    assert not plan(gsm8k("HuggingFaceTB/SmolLM2-1.7B-Instruct", **fields), Card(11, "card")).fits
    change = plan(gsm8k("HuggingFaceTB/SmolLM2-1.7B-Instruct", **fields), Card(11, "card")).smallest_change
    assert change is not None
    assert change.startswith("max_completion_length ")
    fields["max_completion_length"] = int(change.split()[1])
    assert plan(gsm8k("HuggingFaceTB/SmolLM2-1.7B-Instruct", **fields), Card(11, "card")).fits


def test_the_budget_is_the_smaller_of_the_card_and_what_the_recipe_asks() -> None:
    r = gsm8k("Qwen/Qwen2.5-0.5B", device={"kind": "cuda", "memory_gib": 8})
    tight = plan(r, Card(24, "card"))
    assert (tight.fits, tight.budget_gib, tight.smallest_change) == (False, 8.0, "device.memory_gib 24")
    assert plan(gsm8k("Qwen/Qwen2.5-0.5B"), Card(8, "card")).budget_gib == 8.0


def test_no_single_change_is_admitted() -> None:
    hopeless = plan(gsm8k("Qwen/Qwen2.5-7B"), Card(2, "card"))
    assert not hopeless.fits
    assert hopeless.smallest_change is None


def test_the_micro_batch_is_whole_longest_sequences() -> None:
    roomy = plan(gsm8k("Qwen/Qwen2.5-0.5B"), Card(24, "card"))
    assert roomy.micro_batch_tokens == 5 * 3072
    assert plan(gsm8k("Qwen/Qwen2.5-0.5B", micro_batch_tokens=100), Card(24, "card")).micro_batch_tokens == 3072


def test_a_cpu_recomputes_nothing() -> None:
    assert plan(recipe(), Card(4, "host"), facts=TINY).checkpointed_layers == 0


def test_evaluations_and_analyses_are_planned() -> None:
    raw = {"kind": "eval", "model": "Qwen/Qwen2.5-7B", "suites": ["gsm8k"], "max_completion_length": 4096}
    wide = plan(parse_recipe({**raw, "dtype": "float32"}), Card(24, "card"))
    assert (wide.fits, wide.smallest_change) == (False, "dtype bfloat16")
    assert plan(parse_recipe(raw), Card(24, "card")).fits
    assert plan(parse_recipe(raw), Card(14, "card")).smallest_change is None
    of_run = parse_recipe({"kind": "eval", "model": "run:7f3a/best", "suites": ["holdout"]})
    with pytest.raises(PlanError, match="started from"):
        plan(of_run, Card(24, "card"))
    assert plan(of_run, Card(24, "card"), facts=TINY).fits
    analysis = parse_recipe({"kind": "analysis", "run": "run:7f3a", "compute": ["weight_linearity"]})
    # Files are read in chunks, so the model's size does not matter: 64 MiB and the process.
    planned = plan(analysis, Card(24, "host"), facts=model_facts("Qwen/Qwen2.5-1.5B"))
    assert planned.peak_gib == pytest.approx((64 * 2**20 + PROCESS_BYTES) / GIB, abs=0.001)
    forward = parse_recipe({"kind": "analysis", "run": "run:7f3a", "compute": ["weight_linearity", "first_order"]})
    # Two models in float32 are held at once.
    assert plan(forward, Card(24, "host"), facts=model_facts("Qwen/Qwen2.5-1.5B")).peak_gib > 2 * 4 * 1.5e9 / GIB
    with pytest.raises(PlanError):
        plan(analysis, Card(24, "host"))


CONFIG = """{"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16,
 "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "tie_word_embeddings": true}"""


def test_a_local_folders_facts_come_from_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    facts = model_facts("mine", tmp_path)
    assert facts.parameters == 1448 + 2 * (8 + 4 + 4)  # and qwen2's biases on q, k and v
    (folder / "config.json").write_text(CONFIG.replace('"qwen2"', '"mamba"'))
    with pytest.raises(PlanError, match="mamba"):
        model_facts("mine", tmp_path)
    (folder / "config.json").write_text(CONFIG.replace('"hidden_size": 8', '"hidden_size": "8"'))
    with pytest.raises(PlanError, match="hidden_size"):
        model_facts("mine", tmp_path)
    with pytest.raises(PlanError, match="neither"):
        model_facts("acme/unknown", tmp_path)
