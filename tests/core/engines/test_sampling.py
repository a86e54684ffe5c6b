import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from core.engines.base import EngineError, SamplingParams
from core.engines.sampling import SampleStream, choose


def _streams(n, first=0):
    return [SampleStream(first + i) for i in range(n)]


def _many(logits, params, n=4000):
    tokens, logprobs = choose(torch.tensor(logits).repeat(n, 1), _streams(n), params)
    return tokens.numpy(), logprobs.numpy()


def test_greedy_takes_the_lowest_id_on_ties_and_reports_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 5.0]])
    tokens, logprobs = choose(logits, _streams(3), SamplingParams(temperature=0))
    assert tokens.tolist() == [1, 0, 3]
    expected = logits.double().log_softmax(-1)[[0, 1, 2], tokens]
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-6, rtol=0)


def test_sampled_frequencies_follow_the_softmax_at_the_temperature():
    logits = [0.3, -1.0, 1.4, 0.0, -2.5]
    tokens, logprobs = _many(logits, SamplingParams(temperature=0.7), n=20_000)
    probabilities = np.exp(np.array(logits) / 0.7) / np.exp(np.array(logits) / 0.7).sum()
    assert chisquare(np.bincount(tokens, minlength=5), probabilities * 20_000).pvalue > 1e-3
    np.testing.assert_allclose(logprobs, np.log(probabilities)[tokens], atol=1e-6)


def test_the_frequency_check_can_fail():
    tokens, _ = _many([0.3, -1.0, 1.4, 0.0, -2.5], SamplingParams(temperature=1.0), n=20_000)
    probabilities = np.exp(np.array([0.3, -1.0, 1.4, 0.0, -2.5]) / 0.7)
    assert chisquare(np.bincount(tokens, minlength=5), probabilities / probabilities.sum() * 20_000).pvalue < 1e-6


def test_top_k_keeps_ties_and_renormalises():
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1]).tolist()
    tokens, logprobs = _many(logits, SamplingParams(top_k=2))
    assert set(tokens) == {0, 1, 2}
    expected = np.log(np.array([0.5, 0.25, 0.25]))[tokens]
    np.testing.assert_allclose(logprobs, expected, atol=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert set(_many(logits, SamplingParams(top_p=0.45))[0]) == {0}
    assert set(_many(logits, SamplingParams(top_p=0.79))[0]) == {0, 1}
    tokens, logprobs = _many(logits, SamplingParams(top_p=0.81))
    assert set(tokens) == {0, 1, 2}
    np.testing.assert_allclose(logprobs, np.log(np.array([0.5, 0.3, 0.15]) / 0.95)[tokens], atol=1e-6)


def test_top_p_acts_on_what_top_k_left():
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    tokens, logprobs = _many(logits, SamplingParams(top_k=2, top_p=0.5))
    assert set(tokens) == {0}
    np.testing.assert_allclose(logprobs, 0.0, atol=1e-6)


@pytest.mark.parametrize("spread", [0.01, 4.0])
def test_a_nucleus_in_a_wide_vocabulary_is_that_of_a_full_sort(spread):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((1, 5000), generator=generator) * spread
    params = SamplingParams(top_p=0.6)
    probabilities = logits[0].double().softmax(-1).numpy()
    order = np.argsort(-probabilities)
    kept = order[: int((np.cumsum(probabilities[order]) < 0.6).sum()) + 1]
    tokens, logprobs = choose(logits.repeat(300, 1), _streams(300), params)
    assert set(tokens.tolist()) <= set(kept.tolist())
    np.testing.assert_allclose(
        logprobs, np.log(probabilities[tokens] / probabilities[kept].sum()), atol=1e-3 if spread < 1 else 1e-5
    )


def test_minus_infinity_is_never_sampled():
    tokens, _ = _many([0.0, float("-inf"), 0.0], SamplingParams(), n=500)
    assert set(tokens) == {0, 2}


@pytest.mark.parametrize("row", [[float("nan"), 0.0], [float("-inf"), float("-inf")], [float("inf"), 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_are_an_error_and_not_a_sample(row, temperature):
    with pytest.raises(EngineError, match="non-finite"):
        choose(torch.tensor([[0.0, 1.0], row]), _streams(2), SamplingParams(temperature=temperature))


def test_log_softmax_is_taken_in_fp32_for_bf16_logits():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens, logprobs = choose(logits, _streams(4), SamplingParams())
    expected = logits.double().log_softmax(-1)[range(4), tokens]
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-6, rtol=0)


@settings(max_examples=25, deadline=None)
@given(rows=st.permutations(range(6)), steps=st.integers(1, 4))
def test_a_stream_is_consumed_alike_wherever_its_row_stands(rows, steps):
    logits = torch.randn(steps, 6, 40, generator=torch.Generator().manual_seed(1))
    straight, shuffled = _streams(6), _streams(6)
    for step in range(steps):
        expected, _ = choose(logits[step], straight, SamplingParams())
        tokens, _ = choose(logits[step][rows], [shuffled[r] for r in rows], SamplingParams())
        assert tokens.tolist() == expected[rows].tolist()


def test_rounding_of_the_logits_rarely_changes_a_sample():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((2000, 2000), generator=generator) * 3
    noisy = logits + torch.randn(logits.shape, generator=generator) * 1e-5
    before, _ = choose(logits, _streams(2000), SamplingParams())
    after, _ = choose(noisy, _streams(2000), SamplingParams())
    assert int((before != after).sum()) <= 2
