"""A tiny random Llama and a character tokenizer, built in memory."""

import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>"]
VOCAB = 128


def make_tokenizer(*, adds_bos: bool = True, template: str | None = None) -> PreTrainedTokenizerFast:
    """One token per printable ASCII character after seven special tokens."""
    vocabulary = {token: i for i, token in enumerate(SPECIALS)}
    for code in [10, *range(32, 127)]:
        vocabulary[chr(code)] = len(vocabulary)
    inner = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = Split(Regex("(?m:.)"), "isolated")
    inner.decoder = Fuse()
    if adds_bos:
        inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=SPECIALS[4:],
    )
    tokenizer.chat_template = template
    return tokenizer


def make_llama(*, tied: bool = True, seed: int = 0, **changes) -> LlamaForCausalLM:
    """Two layers, hidden size 32; weights wide enough that the next-token distributions are far from uniform."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **changes,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def build_llama():
    return make_llama


@pytest.fixture
def build_tokenizer():
    return make_tokenizer


@pytest.fixture(scope="session")
def shared_llama() -> LlamaForCausalLM:
    """One model for tests that only read it, hypothesis tests among them."""
    return make_llama()


@pytest.fixture
def llama() -> LlamaForCausalLM:
    return make_llama()


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()
