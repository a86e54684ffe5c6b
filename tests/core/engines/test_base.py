import pytest

from core.engines.base import (
    EngineError,
    Request,
    RequestError,
    SamplingParams,
    StaleWeightsError,
    check_requests,
    finish_reason,
    next_version,
    require_version,
)
from core.engines.fake import FakeEngine, markov_logits


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": (-2,)}, "stop_token_ids"),
        ({"stop": ("end", "")}, "stop"),
    ],
)
def test_bad_sampling_parameters_are_refused_by_name(changes, named):
    with pytest.raises(RequestError, match=named):
        SamplingParams(**changes)


@pytest.mark.parametrize(
    ("prompt", "seed", "message"),
    [
        ((), 0, r"requests\[1\].prompt_ids is empty"),
        ((1, 8), 0, "outside 0..7"),
        ((-1,), 0, "outside 0..7"),
        ((1, 2, 3, 4), 0, "max_model_len 13"),
        ((1,), -1, r"requests\[1\].seed"),
    ],
)
def test_a_request_that_cannot_be_served_is_named(prompt, seed, message):
    requests = [Request((1,)), Request(prompt, seed)]
    with pytest.raises(RequestError, match=message):
        check_requests(requests, SamplingParams(max_tokens=10), max_model_len=13, vocab_size=8)


def test_a_request_that_just_fits_is_served():
    check_requests([Request((1, 2, 3))], SamplingParams(max_tokens=10), max_model_len=13, vocab_size=8)


def test_a_stop_token_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="stop_token_ids holds 8"):
        check_requests([Request((1,))], SamplingParams(stop_token_ids=(8,)), max_model_len=999, vocab_size=8)


def test_a_stop_token_as_the_last_allowed_token_counts_as_stop():
    params = SamplingParams(max_tokens=3)
    assert finish_reason(7, 3, params, {7}) == "stop"
    assert finish_reason(6, 3, params, {7}) == "length"
    assert finish_reason(6, 2, params, {7}) is None


def test_versions_only_increase():
    assert next_version(4, None) == 5
    assert next_version(4, 9) == 9
    for stale in (4, 3):
        with pytest.raises(EngineError, match="only increase"):
            next_version(4, stale)


def test_an_engine_with_other_weights_than_the_trainers_is_refused():
    engine = FakeEngine(markov_logits(8, 0), weights_version=3)
    require_version(engine, 3)
    for trainer in (2, 4):
        with pytest.raises(
            StaleWeightsError, match=f"engine holds weights version 3 and the trainer version {trainer}"
        ):
            require_version(engine, trainer)
