import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engines.base import EngineError, Request, SamplingParams
from core.engines.extrapolated_engine import ExtrapolatedEngine
from core.engines.transformers_engine import TransformersEngine

PROMPTS = [(1, 9, 30), (1, 40, 41, 42, 43, 44, 45, 46, 47), (5,), (1, 60, 61, 62, 63)]
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=12)
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def _requests(n=8):
    return [Request(PROMPTS[i % len(PROMPTS)], seed=100 + i) for i in range(n)]


@pytest.fixture(scope="module")
def pair():
    from tests.core.engines.conftest import make_llama

    return make_llama(seed=1), make_llama(seed=2)


def _double(model):
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    return double


def _oracle(pair, alpha, prompt, completion):
    """Combined log-probs before each completion token: two plain fp64 forwards, no cache, no padding, the written formula."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        a, b = (_double(model)(ids).logits[0][len(prompt) - 1 : -1] for model in pair)
    return a + alpha * (b - a)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_at_0_and_1_it_is_one_of_the_checkpoints_exactly(pair, alpha, params):
    plain = TransformersEngine(pair[int(alpha)]).generate(_requests(), params)
    both = ExtrapolatedEngine(*pair, alpha).generate(_requests(), params)
    assert [(c.token_ids, c.logprobs) for c in both] == [(c.token_ids, c.logprobs) for c in plain]


@pytest.mark.parametrize("alpha", [-0.5, 0.5, 1.5, 3.0])
def test_greedy_tokens_and_logprobs_are_those_of_the_combined_logits(pair, alpha):
    done = ExtrapolatedEngine(*pair, alpha).generate(_requests(4), GREEDY)
    for request, completion in zip(_requests(4), done, strict=True):
        logits = _oracle(pair, alpha, request.prompt_ids, completion.token_ids)
        assert list(completion.token_ids) == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_temperature_acts_on_the_combined_logits(pair):
    params = SamplingParams(temperature=0.6, max_tokens=8)
    for request, completion in zip(
        _requests(4), ExtrapolatedEngine(*pair, 1.5).generate(_requests(4), params), strict=True
    ):
        logp = (_oracle(pair, 1.5, request.prompt_ids, completion.token_ids) / 0.6).log_softmax(-1)
        expected = logp.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@settings(max_examples=4, deadline=None)
@given(st.permutations(range(8)), st.integers(1, 8))
def test_neither_order_nor_batch_size_changes_a_sample(pair, order, batch):
    reference = ExtrapolatedEngine(*pair, 1.5).generate(_requests(), SAMPLED)
    shuffled = ExtrapolatedEngine(*pair, 1.5, max_batch_size=batch).generate([_requests()[i] for i in order], SAMPLED)
    assert [c.token_ids for c in shuffled] == [reference[i].token_ids for i in order]


def test_alpha_changes_between_calls_and_every_sample_names_it_by_its_version(pair):
    engine = ExtrapolatedEngine(*pair, 0.0)
    first = engine.generate(_requests(2), GREEDY)
    engine.set_alpha(1.0)
    second = engine.generate(_requests(2), GREEDY)
    assert [c.token_ids for c in second] == [
        c.token_ids for c in TransformersEngine(pair[1]).generate(_requests(2), GREEDY)
    ]
    assert [c.token_ids for c in first] != [c.token_ids for c in second]
    assert (first[0].weights_version, second[0].weights_version) == (0, 1)


def test_settings_say_what_is_extrapolated(pair):
    engine = ExtrapolatedEngine(*pair, 1.5, names={"a": "run:aaaa/step-0", "b": "run:aaaa/step-9"})
    assert json.loads(json.dumps(engine.settings()))["extrapolation"] == {
        "a": "run:aaaa/step-0",
        "b": "run:aaaa/step-9",
        "alpha": 1.5,
    }


def test_both_networks_get_their_training_flags_back(pair):
    for model in pair:
        model.train()
    ExtrapolatedEngine(*pair, 1.5).generate(_requests(1), GREEDY)
    assert all(module.training for model in pair for module in model.modules())
    for model in pair:
        model.eval()


def test_networks_that_do_not_fit_each_other_are_refused(pair, build_llama):
    with pytest.raises(EngineError, match="num_hidden_layers is 2 and 3"):
        ExtrapolatedEngine(pair[0], _deeper(pair[0]), 1.5)


def _deeper(model):
    config = model.config.__class__(**{**model.config.to_dict(), "num_hidden_layers": 3})
    config._attn_implementation = "sdpa"
    return type(model)(config).eval()


def test_a_closed_engine_generates_nothing(pair):
    engine = ExtrapolatedEngine(*pair, 1.5)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate(_requests(1), GREEDY)
