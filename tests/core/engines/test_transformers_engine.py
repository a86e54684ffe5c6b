import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from core.engines import kv_cache
from core.engines.base import EngineError, Request, RequestError, SamplingParams
from core.engines.transformers_engine import TransformersEngine

PROMPTS = [(1, 9, 30), (1, 40, 41, 42, 43, 44, 45, 46, 47), (5,), (1, 60, 61, 62, 63)]
SAMPLED = SamplingParams(temperature=0.8, max_tokens=12)
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def _requests(n=8):
    return [Request(PROMPTS[i % len(PROMPTS)], seed=100 + i) for i in range(n)]


def _oracle_logits(model, prompt, completion):
    """Logits before each completion token, from one plain forward in fp64 without cache or padding."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    with torch.no_grad():
        logits = double(torch.tensor([[*prompt, *completion]])).logits[0]
    return logits[len(prompt) - 1 : -1]


def _assert_close(left, right):
    assert [c.token_ids for c in left] == [c.token_ids for c in right]
    assert [c.finish_reason for c in left] == [c.finish_reason for c in right]
    for one, other in zip(left, right, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)


def test_greedy_tokens_are_the_arg_max_of_a_plain_forward(llama):
    for request, completion in zip(_requests(4), TransformersEngine(llama).generate(_requests(4), GREEDY), strict=True):
        logits = _oracle_logits(llama, request.prompt_ids, completion.token_ids)
        assert list(completion.token_ids) == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_greedy_agrees_with_transformers_generate(llama):
    for prompt, completion in zip(PROMPTS, TransformersEngine(llama).generate(_requests(4), GREEDY), strict=True):
        ids = torch.tensor([prompt])
        theirs = llama.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, eos_token_id=None
        )
        assert theirs[0, len(prompt) :].tolist() == list(completion.token_ids)


def test_logprobs_are_those_of_the_sampling_temperature(llama):
    params = SamplingParams(temperature=0.6, max_tokens=12)
    for request, completion in zip(_requests(), TransformersEngine(llama).generate(_requests(), params), strict=True):
        logp = (_oracle_logits(llama, request.prompt_ids, completion.token_ids) / 0.6).log_softmax(-1)
        expected = logp.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
        assert max(abs(a - b) for a, b in zip(completion.logprobs, (logp * 0.6).tolist()[0], strict=False)) > 0.01


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_short_and_long_prompts_in_one_batch_give_what_they_give_alone(llama, params):
    engine = TransformersEngine(llama)
    together = engine.generate(_requests(), params)
    alone = [engine.generate([request], params)[0] for request in _requests()]
    _assert_close(together, alone)


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(8)))
def test_the_order_of_requests_changes_nothing_not_even_rounding(shared_llama, order):
    engine = TransformersEngine(shared_llama)
    requests = _requests()
    straight = engine.generate(requests, SAMPLED)
    assert engine.generate([requests[i] for i in order], SAMPLED) == [straight[i] for i in order]


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_batch_size": 1},
        {"max_batch_size": 3},
        {"max_batch_tokens": 40},
        {"prefill_tokens": 1},
        {"prefill_tokens": 18},
    ],
)
def test_results_do_not_depend_on_how_requests_are_batched(llama, bounds):
    _assert_close(
        TransformersEngine(llama, **bounds).generate(_requests(), SAMPLED),
        TransformersEngine(llama).generate(_requests(), SAMPLED),
    )


def test_a_growing_cache_changes_nothing(llama, monkeypatch):
    params = SamplingParams(temperature=0.8, max_tokens=60, stop_token_ids=tuple(range(50, 60)))
    roomy = TransformersEngine(llama).generate(_requests(), params)
    monkeypatch.setattr(kv_cache, "_GROWTH", 1)
    assert TransformersEngine(llama).generate(_requests(), params) == roomy


def test_neighbours_that_finish_leave_the_others_alone(llama):
    engine = TransformersEngine(llama)
    full = engine.generate(_requests(), SAMPLED)
    stop = full[0].token_ids[2]
    stopped = engine.generate(_requests(), SamplingParams(temperature=0.8, max_tokens=12, stop_token_ids=(stop,)))
    for whole, cut in zip(full, stopped, strict=True):
        end = whole.token_ids.index(stop) + 1 if stop in whole.token_ids else 12
        assert cut.token_ids == whole.token_ids[:end]
        assert cut.finish_reason == ("stop" if stop in whole.token_ids else "length")
        assert cut.logprobs == pytest.approx(whole.logprobs[:end], abs=2e-5)
    assert {c.finish_reason for c in stopped} == {"stop", "length"}


def test_finished_rows_leave_the_batch(llama, monkeypatch):
    engine = TransformersEngine(llama)
    full = engine.generate(_requests(), SAMPLED)
    params = SamplingParams(temperature=0.8, max_tokens=12, stop_token_ids=(full[0].token_ids[2],))
    sizes = []
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda ids, *rest: sizes.append(len(ids)) or forward(ids, *rest))
    lengths = [len(c.token_ids) for c in engine.generate(_requests(), params)]
    prefill, decode = sizes[0], sizes[1:]
    assert prefill == len(PROMPTS)
    assert decode == [sum(length > step for length in lengths) for step in range(1, max(lengths))]


def test_samples_of_one_prompt_share_its_prefill_and_still_differ(llama):
    requests = [Request(PROMPTS[1], seed=i) for i in range(6)] + [Request(PROMPTS[1], seed=0)]
    completions = TransformersEngine(llama).generate(requests, SAMPLED)
    assert len({c.token_ids for c in completions}) == 6
    assert completions[0] == completions[6]
    assert len({c.logprobs[0] for c in completions if c.token_ids[0] == completions[0].token_ids[0]}) == 1


def test_a_stop_token_belongs_to_the_completion_even_as_the_last_allowed_token(llama):
    engine = TransformersEngine(llama)
    tokens = engine.generate([Request(PROMPTS[0])], GREEDY)[0].token_ids
    first = tokens.index(tokens[3]) + 1
    for limit in (first, 12):
        params = SamplingParams(temperature=0, max_tokens=limit, stop_token_ids=(tokens[3], 99))
        cut = engine.generate([Request(PROMPTS[0])], params)[0]
        assert cut.token_ids == tokens[:first]
        assert cut.finish_reason == "stop"


def test_a_stop_string_ends_at_the_token_that_completes_it(llama, tokenizer):
    engine = TransformersEngine(llama, tokenizer)
    whole = engine.generate(_requests(), SAMPLED)
    text = tokenizer.decode(whole[3].token_ids, skip_special_tokens=False)
    stop = text[4:7]
    params = SamplingParams(temperature=0.8, max_tokens=12, stop=("no such text", stop))
    for full, cut in zip(whole, engine.generate(_requests(), params), strict=True):
        texts = [tokenizer.decode(full.token_ids[:n], skip_special_tokens=False) for n in range(1, 13)]
        end = next((n for n, t in enumerate(texts, start=1) if stop in t), None)
        assert cut.token_ids == full.token_ids[: end or 12]
        assert cut.finish_reason == ("stop" if end else "length")


def test_stop_strings_without_a_tokenizer_are_refused(llama):
    with pytest.raises(EngineError, match="stop strings need a tokenizer"):
        TransformersEngine(llama).generate(_requests(), SamplingParams(max_tokens=4, stop=("x",)))


def test_a_bad_request_is_refused_before_anything_is_generated(llama, monkeypatch):
    engine = TransformersEngine(llama, max_model_len=20)
    monkeypatch.setattr(engine, "_forward", lambda *_: pytest.fail("a forward ran"))
    with pytest.raises(RequestError, match=r"requests\[1\] needs 9 prompt tokens \+ max_tokens 12"):
        engine.generate(_requests(), GREEDY)


def test_no_requests_give_no_completions(llama):
    assert TransformersEngine(llama).generate([], GREEDY) == []


@pytest.mark.parametrize("length", [1, 257])
def test_a_model_length_that_the_positions_do_not_allow_is_refused(llama, length):
    with pytest.raises(EngineError, match="2 to 256"):
        TransformersEngine(llama, max_model_len=length)


def test_new_weights_are_used_at_once_and_every_sample_names_its_version(llama, build_llama):
    engine = TransformersEngine(llama, weights_version=6)
    before = engine.generate(_requests(), GREEDY)
    other = build_llama(seed=5)
    with torch.no_grad():
        for mine, new in zip(llama.parameters(), other.parameters(), strict=True):
            mine.copy_(new)
    engine.update_weights()
    after = engine.generate(_requests(), GREEDY)
    assert [c.token_ids for c in after] == [
        c.token_ids for c in TransformersEngine(other).generate(_requests(), GREEDY)
    ]
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert {c.weights_version for c in before} == {6}
    assert {c.weights_version for c in after} == {7}


@pytest.mark.parametrize("fails", [False, True])
def test_training_state_of_every_module_is_restored(build_llama, fails, monkeypatch):
    model = build_llama(attention_dropout=0.5)
    expected = TransformersEngine(model).generate(_requests(), SAMPLED)
    model.train()
    model.model.layers[1].eval()
    flags = [module.training for module in model.modules()]
    engine = TransformersEngine(model)
    if fails:
        monkeypatch.setattr(engine, "_forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(_requests(), SAMPLED)
    else:
        assert engine.generate(_requests(), SAMPLED) == expected
    assert [module.training for module in model.modules()] == flags
    assert torch.is_grad_enabled()
    loss = model(torch.tensor([PROMPTS[1]])).logits.sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_generation_leaves_the_global_random_state_alone(llama):
    state = torch.get_rng_state()
    TransformersEngine(llama).generate(_requests(), SAMPLED)
    assert torch.equal(torch.get_rng_state(), state)


class _LargestLogits(TorchDispatchMode):
    """Remembers the largest number of rows of any tensor over the vocabulary, the transposed head itself excepted."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor) or tensor.ndim < 2 or func is torch.ops.aten.t.default:
                continue
            if tensor.shape[-1] == self.vocabulary:
                self.rows = max(self.rows, tensor.numel() // self.vocabulary)
        return out


def test_logits_exist_for_the_last_position_only(llama):
    requests = [Request(tuple(range(1, 40)), seed=i) for i in range(3)] + [Request((4, 5), seed=9)]
    with _LargestLogits(128) as seen:
        TransformersEngine(llama).generate(requests, SAMPLED)
    assert seen.rows == 4


def test_an_untied_model_is_decoded_with_its_own_head(build_llama):
    model = build_llama(tied=False)
    completion = TransformersEngine(model).generate([Request(PROMPTS[1])], GREEDY)[0]
    logits = _oracle_logits(model, PROMPTS[1], completion.token_ids)
    assert list(completion.token_ids) == logits.argmax(-1).tolist()


def test_settings_can_be_stored_as_json(llama):
    engine = TransformersEngine(llama, max_batch_size=7)
    record = json.loads(json.dumps(engine.settings()))
    assert record["engine"] == "transformers"
    assert record["max_batch_size"] == 7
    assert record["dtype"] == "float32"
    assert record["attention"] == "sdpa"


def test_a_closed_engine_says_so(llama):
    engine = TransformersEngine(llama)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate(_requests(), GREEDY)
