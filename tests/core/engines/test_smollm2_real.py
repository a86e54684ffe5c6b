"""The real SmolLM2-135M-Instruct: the engine against transformers' own generate() and against a plain forward."""

import pytest
import torch
from safetensors import safe_open

from core.engines.base import Request, SamplingParams
from core.engines.models import body_and_head, load_model, load_tokenizer, named_weights, save_model, weights_sha256
from core.engines.prompts import PromptSpec, render
from core.engines.transformers_engine import TransformersEngine

pytestmark = pytest.mark.slow

QUESTIONS = [
    "What is 2+2?",
    "Name the capital of France.",
    "Write one sentence about the sea, the wind and an old lighthouse keeper who reads.",
    "Say hello.",
    "What is 17 times 3? Think step by step, then give the number.",
    "List three colours.",
    "Why is the sky blue? Answer in one short sentence, as if to a child of five.",
    "Count to five.",
]


@pytest.fixture(scope="module")
def model(smollm2_dir):
    return load_model(smollm2_dir, torch.float32, "cpu")


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir):
    return load_tokenizer(smollm2_dir)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [render(tokenizer, question, PromptSpec()).token_ids for question in QUESTIONS]


def _logits(model, prompt, completion):
    with torch.no_grad():
        return model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].double()


def test_end_and_padding_are_the_end_of_turn(model, tokenizer):
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2
    assert model.config.pad_token_id == 2


def test_the_template_has_its_default_system_text_unless_told_otherwise(tokenizer):
    assert "named SmolLM" in render(tokenizer, "Hi", PromptSpec()).text
    assert (
        render(tokenizer, "Hi", PromptSpec(system="")).text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_head_is_tied_and_left_out_of_the_file(model, smollm2_dir, tmp_path):
    assert body_and_head(model)[2]
    save_model(model, tmp_path, torch.float32)
    with (
        safe_open(str(smollm2_dir / "model.safetensors"), "pt") as base,
        safe_open(str(tmp_path / "model.safetensors"), "pt") as saved,
    ):
        assert set(saved.keys()) == set(base.keys())
        assert "lm_head.weight" not in set(base.keys())
        stored = weights_sha256({name: base.get_tensor(name) for name in base.keys()})  # noqa: SIM118
    assert stored == weights_sha256(named_weights(model))


def test_greedy_agrees_with_generate_token_for_token(model, prompts):
    params = SamplingParams(temperature=0, max_tokens=24, stop_token_ids=(2,))
    ours = TransformersEngine(model).generate([Request(p) for p in prompts], params)
    for prompt, completion in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        assert list(completion.token_ids) == theirs[0, len(prompt) :].tolist()
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == 2 else "length")
    assert {c.finish_reason for c in ours} == {"stop", "length"}


def test_sampled_logprobs_are_those_of_a_plain_forward_at_the_temperature(model, prompts):
    params = SamplingParams(temperature=0.6, max_tokens=16, stop_token_ids=(2,))
    completions = TransformersEngine(model).generate([Request(p, i) for i, p in enumerate(prompts)], params)
    for prompt, completion in zip(prompts, completions, strict=True):
        logp = (_logits(model, prompt, completion.token_ids) / 0.6).log_softmax(-1)
        expected = logp.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()
        assert completion.logprobs == pytest.approx(expected, abs=2e-4)


def test_samples_are_the_same_alone_and_in_a_batch(model, prompts):
    params = SamplingParams(temperature=1.0, max_tokens=12)
    engine = TransformersEngine(model)
    requests = [Request(p, 50 + i) for i, p in enumerate(prompts[:4])]
    together = engine.generate(requests, params)
    for request, completion in zip(requests, together, strict=True):
        alone = engine.generate([request], params)[0]
        assert alone.token_ids == completion.token_ids
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=2e-4)
