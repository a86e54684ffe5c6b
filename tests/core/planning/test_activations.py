"""The formula for saved activations against what autograd really keeps, counted on small random models."""

from typing import Any

import pytest

from core.planning.memory import saved_per_layer
from core.recipes.models import ModelFacts

ROWS, LENGTH = 2, 32


def saved_bytes(family: str, facts: ModelFacts, layers: int, dtype: Any) -> int:
    """Bytes of the distinct storages that the body's forward keeps for its backward, weights and buffers left out."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=facts.vocab,
        hidden_size=facts.hidden,
        intermediate_size=facts.intermediate,
        num_attention_heads=facts.heads,
        num_key_value_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        num_hidden_layers=layers,
        attn_implementation="sdpa",
    )
    model = AutoModelForCausalLM.from_config(config).to(dtype).train()
    fixed = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed:
            kept[storage.data_ptr()] = storage
        return tensor

    mask_BT = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask_BT[0, -3:] = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.model(
            input_ids=torch.randint(0, facts.vocab, (ROWS, LENGTH)), attention_mask=mask_BT, use_cache=False
        )
    assert output.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "hidden", "intermediate", "heads", "kv_heads"),
    [("llama", 64, 192, 4, 2), ("qwen2", 128, 160, 8, 4), ("qwen3", 64, 192, 8, 2), ("qwen3", 96, 128, 4, 4)],
)
def test_one_more_layer_keeps_exactly_what_the_formula_says(
    family: str, hidden: int, intermediate: int, heads: int, kv_heads: int, dtype: str
) -> None:
    import torch

    facts = ModelFacts(family, 2, hidden, intermediate, heads, kv_heads, 16, 128, tied=False, qk_norm=family == "qwen3")
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    grown = saved_bytes(family, facts, 3, kind) - saved_bytes(family, facts, 2, kind)
    assert grown == saved_per_layer(facts, ROWS * LENGTH, LENGTH, 4 if dtype == "float32" else 2)
