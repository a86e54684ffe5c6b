"""The real vLLM on the real SmolLM2-135M in fp32, against transformers on the same weights. One engine for the module."""

import pytest
import torch

from core.engines.base import NonFiniteLogitsError, Request, RequestError, SamplingParams, StaleWeightsError
from core.engines.models import load_model, load_tokenizer, named_weights
from core.engines.opening import folder_stop_token_ids
from core.engines.prompts import PromptSpec, render
from core.engines.transformers_engine import TransformersEngine
from core.engines.vllm_engine import VllmEngine
from core.engines.vllm_launch import VllmOptions

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

MAX_LEN = 192


@pytest.fixture(scope="module")
def model(smollm2_dir):
    return load_model(smollm2_dir, torch.float32, "cpu")


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir):
    return load_tokenizer(smollm2_dir)


@pytest.fixture(scope="module")
def engine(smollm2_dir, model):
    options = VllmOptions(
        max_model_len=MAX_LEN,
        max_num_seqs=64,
        kv_cache_bytes=2**29,
        dtype="float32",
        device="cpu",
        in_process=True,
        enforce_eager=True,
    )
    engine = VllmEngine(smollm2_dir, options, live=lambda: named_weights(model))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def sums(tokenizer):
    """64 prompts of chain_sum, rendered with the template."""
    import reasoning_gym

    data = reasoning_gym.create_dataset(
        "chain_sum", size=64, seed=3, min_terms=2, max_terms=2, min_digits=1, max_digits=1
    )
    return [render(tokenizer, item["question"], PromptSpec(system="")).token_ids for item in data]


def _logp(model, prompt, completion, temperature=1.0):
    """Log-probs [T, V] of a plain forward at the positions that predict the completion."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].double()
    return (logits / temperature).log_softmax(-1)


def _of(logp, completion):
    return logp.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


def test_greedy_agrees_with_transformers_on_64_items(engine, model, sums):
    params = SamplingParams(temperature=0, max_tokens=10, stop_token_ids=(2,))
    requests = [Request(prompt) for prompt in sums]
    served, expected = engine.generate(requests, params), TransformersEngine(model).generate(requests, params)
    assert [c.token_ids for c in served] == [c.token_ids for c in expected]
    assert [c.finish_reason for c in served] == [c.finish_reason for c in expected]
    for one, other in zip(served, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)  # greedy: at temperature 1, whole vocabulary


def test_sampled_logprobs_are_those_of_a_plain_forward_at_the_temperature(engine, model, sums):
    params = SamplingParams(temperature=0.6, max_tokens=8, stop_token_ids=(2,))
    for prompt, done in zip(
        sums[:6], engine.generate([Request(p, 7 + i) for i, p in enumerate(sums[:6])], params), strict=True
    ):
        assert done.logprobs == pytest.approx(_of(_logp(model, prompt, done.token_ids, 0.6), done.token_ids), abs=1e-3)


def test_logprobs_are_those_left_by_top_k(engine, model, sums):
    params = SamplingParams(temperature=1.5, top_k=3, max_tokens=8)
    for prompt, done in zip(
        sums[:3], engine.generate([Request(p, i) for i, p in enumerate(sums[:3])], params), strict=True
    ):
        top = _logp(model, prompt, done.token_ids, 1.5).topk(3)
        kept = top.values.log_softmax(-1)
        places = (top.indices == torch.tensor(done.token_ids)[:, None]).nonzero()
        assert places[:, 0].tolist() == list(range(len(done.token_ids)))
        assert done.logprobs == pytest.approx(kept[places[:, 0], places[:, 1]].tolist(), abs=1e-3)


def test_each_seed_has_its_own_samples_wherever_it_stands_in_the_call(engine, sums):
    params = SamplingParams(temperature=1.0, max_tokens=8)
    requests = [Request(sums[0], 2**63 - 1 - seed) for seed in range(8)]
    there, back = engine.generate(requests, params), engine.generate(requests[::-1], params)[::-1]
    assert len({c.token_ids for c in there}) == 8
    assert [c.token_ids for c in there] == [c.token_ids for c in back]


def test_the_token_that_completes_a_stop_belongs_to_the_completion(engine, tokenizer, sums):
    whole = engine.generate([Request(sums[1])], SamplingParams(temperature=0, max_tokens=8))[0].token_ids
    texts = [tokenizer.decode(whole[:count]) for count in range(1, 9)]
    word = texts[4][len(texts[3]) :].strip()
    first = next(count for count, text in enumerate(texts, start=1) if word in text)
    by_text = engine.generate([Request(sums[1])], SamplingParams(temperature=0, max_tokens=8, stop=(word,)))[0]
    assert (by_text.token_ids, by_text.finish_reason) == (whole[:first], "stop")
    last = engine.generate([Request(sums[1])], SamplingParams(temperature=0, max_tokens=3, stop_token_ids=(whole[2],)))
    cut = whole.index(whole[2]) + 1
    assert (last[0].token_ids, last[0].finish_reason) == (whole[:cut], "stop")


def test_an_overlong_request_is_refused_before_anything_is_sampled(engine, sums):
    with pytest.raises(RequestError, match=r"above the engine's max_model_len 192"):
        engine.generate([Request(sums[0])], SamplingParams(max_tokens=MAX_LEN))


def test_handed_over_weights_are_the_ones_sampled_from(engine, model, sums):
    """The prompts were served before, so a prefix cache that survived, or a head that was not repacked, would show."""
    params = SamplingParams(temperature=0, max_tokens=8)
    requests = [Request(prompt) for prompt in sums[:8]]
    before, version = engine.generate(requests, params), engine.weights_version
    kept = {name: tensor.clone() for name, tensor in named_weights(model).items()}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in named_weights(model).values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * tensor.abs().mean() * 0.2)
    with pytest.raises(StaleWeightsError, match=f"handed over as version {version}"):
        engine.generate(requests, params)
    engine.update_weights(version + 1)
    after, expected = engine.generate(requests, params), TransformersEngine(model).generate(requests, params)
    assert [c.token_ids for c in after] == [c.token_ids for c in expected] != [c.token_ids for c in before]
    for one, other in zip(after, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    assert {c.weights_version for c in after} == {version + 1}
    with torch.no_grad():
        for name, tensor in named_weights(model).items():
            tensor.copy_(kept[name])
    engine.update_weights()
    assert [c.token_ids for c in engine.generate(requests, params)] == [c.token_ids for c in before]


def test_logprobs_left_out_change_no_token(engine, sums):
    requests = [Request(prompt, seed) for seed, prompt in enumerate(sums[:8])]
    for params in (SamplingParams(temperature=0, max_tokens=6), SamplingParams(temperature=0.9, max_tokens=6)):
        without, having = engine.generate(requests, params, logprobs=False), engine.generate(requests, params)
        assert [done.token_ids for done in without] == [done.token_ids for done in having]
        assert {done.logprobs for done in without} == {()}


@pytest.mark.parametrize("logprobs", [False, True])
def test_weights_that_are_not_finite_are_an_error_and_not_text(engine, model, sums, logprobs):
    weight = model.model.norm.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight[3] = float("nan")
        engine.update_weights()
        with pytest.raises(NonFiniteLogitsError):
            engine.generate([Request(sums[0])], SamplingParams(temperature=0, max_tokens=4), logprobs=logprobs)
    finally:
        with torch.no_grad():
            weight.copy_(kept)
        engine.update_weights()
    assert engine.generate([Request(sums[0])], SamplingParams(temperature=0, max_tokens=4), logprobs=logprobs)


def test_settings_name_what_can_change_the_output(engine):
    settings = engine.settings()
    assert settings["engine"] == "vllm"
    assert settings["logprobs_mode"] == "processed_logprobs"
    assert {k: settings[k] for k in ("dtype", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes", "seed")} == {
        "dtype": "float32",
        "max_model_len": MAX_LEN,
        "max_num_seqs": 64,
        "kv_cache_memory_bytes": 2**29,
        "seed": 0,
    }
    assert {"enforce_eager", "prefix_caching", "batch_invariant", "gpu_memory_utilization"} <= set(settings)


def test_stop_tokens_of_a_folder_need_no_weights(smollm2_dir, tokenizer):
    assert folder_stop_token_ids(smollm2_dir, tokenizer) == (2,)
