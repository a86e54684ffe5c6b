"""Predicted activations against what a card recorded, against autograd's count, and the choice made from them."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.planning.checkpointing import activation_bytes, fewest_checkpointed_layers, kept_per_token
from core.recipes.catalogue import MODELS

QWEN = MODELS["Qwen/Qwen2.5-1.5B"]
GIB = 2**30
RESULTS = Path(__file__).parents[3] / "bench" / "results" / "trainer-recomputation.json"


def recorded():
    for tokens, figures in json.loads(RESULTS.read_text(encoding="utf-8"))["recomputation"].items():
        for count, figure in figures.items():
            if count.isdigit():
                yield pytest.param(int(tokens), int(count), figure["peak_gib"], id=f"{tokens}-{count}")


@pytest.mark.parametrize(("tokens", "count", "peak"), recorded())
def test_the_prediction_is_within_ten_percent_of_the_recorded_activations(tokens, count, peak):
    held = 2 * 2 * QWEN.parameters / GIB  # bfloat16 weights and gradients
    predicted = activation_bytes(QWEN, tokens=tokens, chunk=1024, checkpointed=count) / GIB
    assert predicted == pytest.approx(peak - held, rel=0.1)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_kept_layer_holds_what_autograd_holds(family):
    from core.planning.facts import _from_config
    from core.rl.lean import make_lean
    from tests.core.rl.test_lean import build

    model = build(family)
    make_lean(model.model)
    facts = _from_config(family, model.config.to_dict())
    sizes, weights = {}, {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def kept(layers):
        sizes.clear()
        hidden = torch.randn(2, 13, 24, requires_grad=True)
        angles = model.model.rotary_emb(hidden, torch.arange(13)[None])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            for layer in model.model.layers[:layers]:
                hidden = layer(hidden, position_embeddings=angles)
        return sum(sizes.values())

    assert kept(2) - kept(1) == 26 * kept_per_token(facts, 4)


@given(tokens=st.integers(64, 40_000), available=st.integers(0, 60 * GIB))
def test_the_choice_fits_and_one_layer_fewer_does_not(tokens, available):
    count = fewest_checkpointed_layers(QWEN, tokens=tokens, chunk=512, available=available)

    def needed(layers):
        return activation_bytes(QWEN, tokens=tokens, chunk=512, checkpointed=layers)

    if count is None:
        assert min(needed(layers) for layers in range(QWEN.layers + 1)) > available
    else:
        assert needed(count) <= available
        assert count == 0 or needed(count - 1) > available


def test_a_count_beyond_the_layers_is_refused():
    with pytest.raises(ValueError, match="between 0 and 28 layers, got 29"):
        activation_bytes(QWEN, tokens=64, chunk=64, checkpointed=29)
