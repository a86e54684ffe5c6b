"""The real vLLM on two networks at once: SmolLM2-135M beside a perturbed copy of it, and a tiny model of every family.

The oracle at alpha 0 and 1 is vLLM itself on one checkpoint, bit for bit; elsewhere it is the transformers reference. All
engines run in this process, one after another.
"""

import gc
import shutil

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from core.engines.base import Request, SamplingParams
from core.engines.extrapolated_engine import ExtrapolatedEngine
from core.engines.extrapolated_serving import open_line
from core.engines.models import load_model, load_tokenizer, save_model
from core.engines.opening import Sizes, open_folder
from core.engines.prompts import PromptSpec, render
from core.engines.references import ModelSource

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

SIZES = Sizes(max_model_len=128, max_num_seqs=16, batch_tokens=4096, kv_cache_bytes=2**28)
HERE = {"dtype": torch.float32, "device": torch.device("cpu")}
GREEDY = SamplingParams(temperature=0, max_tokens=8)
SAMPLED = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=8)
FAMILY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}


def _answers(engine, requests, params):
    return [(done.token_ids, done.logprobs) for done in engine.generate(requests, params)]


def _alone(folder, requests):
    served = open_folder("vllm", folder, sizes=SIZES, **HERE)
    answers = {params: _answers(served.engine, requests, params) for params in (GREEDY, SAMPLED)}
    served.engine.close()
    gc.collect()
    return answers


@pytest.fixture(scope="module")
def folders(smollm2_dir, tmp_path_factory):
    """The real model, and the same with every matrix moved by two hundredths of its spread."""
    moved = tmp_path_factory.mktemp("moved")
    model = load_model(smollm2_dir, torch.float32, "cpu")
    noise = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.add_(torch.randn(weight.shape, generator=noise), alpha=0.02 * float(weight.std()))
    save_model(model, moved, torch.float32)
    load_tokenizer(smollm2_dir).save_pretrained(str(moved))
    yield smollm2_dir, moved
    shutil.rmtree(moved)


@pytest.fixture(scope="module")
def requests(smollm2_dir):
    tokenizer = load_tokenizer(smollm2_dir)
    texts = [f"What is {n} plus {n + 3}? Then name a city." for n in range(6)]
    return [Request(render(tokenizer, text, PromptSpec(system="")).token_ids, 40 + n) for n, text in enumerate(texts)]


@pytest.fixture(scope="module")
def alone(folders, requests):
    """What vLLM answers with each checkpoint by itself."""
    return [_alone(folder, requests) for folder in folders]


@pytest.fixture(scope="module")
def line(folders, alone, tmp_path_factory):
    a, b = (ModelSource(folder, name, None) for folder, name in zip(folders, "ab", strict=True))
    served = open_line("vllm", a, b, 1.5, sizes=SIZES, scratch=tmp_path_factory.mktemp("line"), **HERE)
    yield served.engine
    served.engine.close()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("alpha", [0, 1])
def test_at_0_and_1_vllm_answers_as_with_one_checkpoint_to_the_last_bit(line, alone, requests, alpha, params):
    line.set_alpha(alpha)
    assert _answers(line, requests, params) == alone[alpha][params]
    assert alone[0][params] != alone[1][params]


@pytest.fixture(scope="module")
def reference(folders):
    return ExtrapolatedEngine(*(load_model(folder, torch.float32, "cpu") for folder in folders), 1.5)


@pytest.mark.parametrize("alpha", [0.5, 1.5, 2.5])
def test_elsewhere_vllm_and_transformers_agree(line, reference, requests, alpha):
    line.set_alpha(alpha)
    reference.set_alpha(alpha)
    served, expected = line.generate(requests, GREEDY), reference.generate(requests, GREEDY)
    assert [c.token_ids for c in served] == [c.token_ids for c in expected]
    for one, other in zip(served, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=5e-4)


def test_weights_are_taken_by_their_prefix_and_no_others(line):
    model = line._runner.model
    names = {name for name, _ in model.named_parameters()}
    assert {name.split(".")[1] for name in names} == {"a", "b"}
    norm = torch.full_like(model.pair.b.model.norm.weight, 0.5)
    before = [model.pair.a.model.norm.weight.clone(), model.pair.b.model.norm.weight.clone()]
    given = [("b.model.norm.weight", norm), ("alpha", torch.tensor(0.25))]
    assert model.load_weights(given) == {"pair.b.model.norm.weight", "alpha"}
    assert torch.equal(model.pair.a.model.norm.weight, before[0])
    assert torch.equal(model.pair.b.model.norm.weight, norm)
    assert model.alpha.item() == 0.25
    model.load_weights([("b.model.norm.weight", before[1])])
    with pytest.raises(ValueError, match=r"holds alpha, a\.\* and b\.\*, not 'c'"):
        model.load_weights([("c.model.norm.weight", norm)])


def test_settings_say_what_is_extrapolated(line):
    line.set_alpha(2)
    settings = line.settings()
    assert settings["engine"] == "vllm"
    assert settings["extrapolation"] == {"a": "a", "a_sha256": None, "b": "b", "b_sha256": None, "alpha": 2.0}


@pytest.mark.parametrize(
    "build",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**FAMILY, tie_word_embeddings=False)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**FAMILY | {"num_attention_heads": 2, "num_key_value_heads": 1})),
        lambda: Qwen3ForCausalLM(Qwen3Config(**FAMILY, tie_word_embeddings=True)),
        lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**FAMILY, **MOE)),
    ],
    ids=["llama", "qwen2", "qwen3", "qwen3_moe"],
)
def test_every_family_gives_the_references_answers(build, tmp_path, tokenizer):
    """Tied and untied heads, biases, norms on q and k, experts: alpha beyond b, each network with its own weights."""
    networks = []
    for side in ("a", "b"):
        torch.manual_seed(ord(side))
        network = build().eval()
        (tmp_path / side).mkdir()
        save_model(network, tmp_path / side, torch.float32)
        tokenizer.save_pretrained(str(tmp_path / side))
        networks.append(load_model(tmp_path / side, torch.float32, "cpu"))
    asked = [Request((1, 9, 30, 40 + n)) for n in range(4)]
    a, b = (ModelSource(tmp_path / side, side, None) for side in ("a", "b"))
    served = open_line("vllm", a, b, 2.0, sizes=SIZES, scratch=tmp_path, **HERE)
    answers = served.engine.generate(asked, GREEDY)
    served.engine.close()
    for one, other in zip(answers, ExtrapolatedEngine(*networks, 2.0).generate(asked, GREEDY), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-4)
