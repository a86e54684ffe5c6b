"""The mismatch between the engine's log-probs and the trainer's."""

import math

import pytest
import torch

from core.rl.statistics import MismatchStats, TokenStats, mismatch_stats


def test_mismatch_of_an_exact_engine_is_zero():
    logp = torch.randn(3, 5)
    assert mismatch_stats(logp, logp.clone(), torch.ones(3, 5)) == MismatchStats(tokens=15)


def test_mismatch_sums_over_valid_tokens_and_adds_over_parts():
    trainer = torch.tensor([[-1.0, -2.0, math.nan], [-0.5, 0.0, 0.0]], dtype=torch.float64)
    engine = torch.tensor([[-1.5, -1.0, 0.0], [-0.5, 0.0, math.inf]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    whole = mismatch_stats(trainer, engine, mask)
    assert (whole.tokens, whole.absolute, whole.absolute_max) == (3, 1.5, 1.0)
    assert whole.kl_k1 == pytest.approx(0.5)
    assert whole.kl_k3 == pytest.approx(math.exp(0.5) - 1.5 + math.exp(-1.0))
    parts = [mismatch_stats(trainer[i : i + 1], engine[i : i + 1], mask[i : i + 1]) for i in range(2)]
    assert parts[0] + parts[1] == whole


def test_mismatch_without_tokens_is_empty():
    assert mismatch_stats(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)) == MismatchStats()


def test_token_statistics_have_an_empty_sum():
    some = TokenStats(tokens=2, entropy=1.0, ratio_max=1.5, logp=-4.0, logp_squared=8.0, logp_min=-2.0)
    assert TokenStats() + some == some
    assert some.means()["entropy"] == 0.5
    assert some.means()["logp_std"] == 0.0


def test_a_log_prob_that_is_not_a_number_stays_visible_in_the_means():
    assert math.isnan(TokenStats(tokens=1, logp=math.nan, logp_squared=math.nan).means()["logp_std"])
