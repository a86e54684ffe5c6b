"""A tiny Llama for the trainer's tests: tied or untied, any dtype, seeded."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(
    *, dtype: torch.dtype = torch.float64, tied: bool = True, seed: int = 0, vocab: int = 61
) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(dtype)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()
