"""The lean layers against the library's own: values, gradients, what is kept, and when they step aside."""

import gc
import weakref

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from core.rl.lean import lean_layers, make_lean

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "attn_implementation": "sdpa",
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
}
IDS = torch.arange(26).reshape(2, 13)


def build(family, **changes):
    config, model_class, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = model_class(config(**SHAPE | extra | changes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.train()


def hidden_and_gradients(model):
    hidden = model.model(input_ids=IDS, use_cache=False).last_hidden_state
    hidden.backward(torch.linspace(-1, 1, hidden.numel()).reshape(hidden.shape))
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_every_gradient_are_those_of_the_library(family):
    expected, expected_gradients = hidden_and_gradients(build(family))
    model = build(family)
    assert make_lean(model.model) == 2
    hidden, gradients = hidden_and_gradients(model)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, value in gradients.items():
        torch.testing.assert_close(value, expected_gradients[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_less_than_six_tenths_is_kept_for_the_backward(family):
    def kept(model):
        sizes = {}
        weights = {p.data_ptr() for p in model.parameters()}

        def pack(tensor):
            if tensor.data_ptr() not in weights:
                sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.model(input_ids=IDS, use_cache=False)
        return sum(sizes.values())

    # An MLP as wide as real ones, whose inner tensors are most of what is kept.
    lean = build(family, intermediate_size=144)
    make_lean(lean.model)
    assert kept(lean) < 0.6 * kept(build(family, intermediate_size=144))


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_with_a_cache_and_masks_takes_the_librarys_own_forward(family):
    model, lean = build(family).eval(), build(family).eval()
    make_lean(lean.model)
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    with torch.no_grad():
        assert torch.equal(
            model.model(input_ids=IDS, attention_mask=mask).last_hidden_state,
            lean.model(input_ids=IDS, attention_mask=mask).last_hidden_state,
        )
        assert torch.equal(
            model.generate(IDS, max_new_tokens=4, do_sample=False),
            lean.generate(IDS, max_new_tokens=4, do_sample=False),
        )


@pytest.mark.parametrize("change", [{"attention_dropout": 0.1}, {"hidden_act": "gelu"}, {"mlp_bias": True}])
def test_an_unusual_model_of_a_known_family_is_left_alone(change):
    assert make_lean(build("llama", **change).model) == 0


def test_after_a_block_the_layers_are_the_librarys_and_the_model_goes_with_its_last_name():
    model, plain = build("llama"), build("llama")
    with torch.no_grad():
        with lean_layers(model.model) as layers:
            lean = model.model(input_ids=IDS, use_cache=False).last_hidden_state
        assert layers == 2
        assert not any("forward" in module.__dict__ for module in model.modules())
        expected = plain.model(input_ids=IDS, use_cache=False).last_hidden_state
        assert torch.equal(model.model(input_ids=IDS, use_cache=False).last_hidden_state, expected)
    torch.testing.assert_close(lean, expected, rtol=1e-5, atol=1e-5)
    weight = weakref.ref(model.model.layers[0].mlp.gate_proj.weight)
    gc.disable()
    try:
        del model
        assert weight() is None
    finally:
        gc.enable()


def test_a_forward_that_somebody_set_before_is_set_again():
    layer = build("llama").model.layers[0]
    layer.forward = own = layer.forward
    with lean_layers(layer):
        assert layer.forward is not own
    assert layer.forward is own
