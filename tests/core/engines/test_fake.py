import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from core.engines.base import EngineError, Request, RequestError, SamplingParams
from core.engines.fake import FakeEngine, markov_logits

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    top_k=st.integers(0, 6),
    max_tokens=st.integers(1, 12),
    stop_token_ids=st.sampled_from([(), (0,), (3, 4)]),
)


@settings(max_examples=60, deadline=None)
@given(params=PARAMS, table=st.integers(0, 20), seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_completions_keep_every_promise_of_an_engine(params, table, seeds):
    engine = FakeEngine(markov_logits(5, table), weights_version=3)
    requests = [Request((i % 5,), seed) for i, seed in enumerate(seeds)]
    completions = engine.generate(requests, params)
    assert engine.generate(requests[::-1], params) == completions[::-1]
    for request, completion in zip(requests, completions, strict=True):
        assert completion.weights_version == 3
        assert len(completion.logprobs) == len(completion.token_ids) <= params.max_tokens
        stopped = completion.token_ids[-1] in params.stop_token_ids
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == params.max_tokens
        assert not set(completion.token_ids[:-1]) & set(params.stop_token_ids)
        last = request.prompt_ids[-1]
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            assert logprob == engine.logprobs(last, params)[token]
            assert math.isfinite(logprob)
            last = token


def test_logprobs_are_the_softmax_at_the_temperature():
    logits = markov_logits(7, 1)
    got = FakeEngine(logits).logprobs(4, SamplingParams(temperature=0.6))
    expected = torch.tensor(logits[4] / 0.6).log_softmax(-1)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-12)


def test_top_k_and_top_p_renormalise():
    engine = FakeEngine(np.tile(np.log([0.4, 0.3, 0.2, 0.1]), (4, 1)))
    np.testing.assert_allclose(np.exp(engine.logprobs(0, SamplingParams(top_k=2))), [4 / 7, 3 / 7, 0, 0])
    np.testing.assert_allclose(np.exp(engine.logprobs(0, SamplingParams(top_p=0.6))), [4 / 7, 3 / 7, 0, 0])
    np.testing.assert_allclose(np.exp(engine.logprobs(0, SamplingParams(top_k=2, top_p=0.5))), [1, 0, 0, 0])


def test_sampled_frequencies_are_those_of_the_table():
    engine = FakeEngine(markov_logits(6, 2))
    params = SamplingParams(temperature=0.8, max_tokens=1)
    tokens = [c.token_ids[0] for c in engine.generate([Request((2,), s) for s in range(8000)], params)]
    assert chisquare(np.bincount(tokens, minlength=6), np.exp(engine.logprobs(2, params)) * 8000).pvalue > 1e-3


def test_a_changed_table_is_used_at_once():
    logits = markov_logits(4, 0)
    engine = FakeEngine(logits)
    logits[:] = -50.0
    logits[:, 3] = 50.0
    engine.update_weights(8)
    completion = engine.generate([Request((0,))], SamplingParams(max_tokens=3))[0]
    assert completion.token_ids == (3, 3, 3)
    assert completion.weights_version == 8


def test_what_it_cannot_do_is_refused():
    engine = FakeEngine(markov_logits(4, 0), max_model_len=8)
    with pytest.raises(EngineError, match="knows no text"):
        engine.generate([Request((0,))], SamplingParams(max_tokens=1, stop=("x",)))
    with pytest.raises(RequestError, match="max_model_len 8"):
        engine.generate([Request((0,))], SamplingParams(max_tokens=8))
    with pytest.raises(EngineError, match="square"):
        FakeEngine(np.zeros((2, 3)))
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate([Request((0,))], SamplingParams(max_tokens=1))
