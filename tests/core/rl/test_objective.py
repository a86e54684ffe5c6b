"""Token weights, the surrogate, KL and importance weights on vectors small enough for a hand calculation."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.rl.objective import (
    Objective,
    TokenTerms,
    UpdateTotals,
    importance_weights,
    kl_penalty,
    policy_loss,
    ratio,
    surrogate,
    token_weights,
    update_totals,
)

LENGTHS = torch.tensor([1, 3, 4, 8])
MASK = torch.arange(8)[None, :] < LENGTHS[:, None]
LOSSES = torch.tensor([4.0, 1.0, 2.0, 0.5], dtype=torch.float64)[:, None].expand(4, 8)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("aggregation", "norm_length", "expected"),
    [("token_mean", None, 1.1875), ("seq_mean_token_mean", None, 1.875), ("seq_mean_token_sum_norm", 10, 0.475)],
)
@pytest.mark.parametrize("split", [[[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2, 3]]])
def test_every_split_of_four_sequences_gives_the_published_loss(aggregation, norm_length, expected, split):
    totals = update_totals(MASK)
    assert totals == UpdateTotals(sequences=4, tokens=16)
    parts = [(LOSSES[p] * token_weights(MASK[p], aggregation, norm_length, totals=totals)).sum() for p in split]
    assert float(sum(parts)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_a_sample_masked_throughout_leaves_the_denominators(aggregation):
    mask = MASK.clone()
    mask[3] = False
    with_it = (LOSSES * token_weights(mask, aggregation, 10)).sum()
    without = (LOSSES[:3] * token_weights(MASK[:3], aggregation, 10)).sum()
    assert float(with_it) == pytest.approx(float(without), abs=1e-15)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_nothing_surviving_gives_weights_of_zero_and_says_so(aggregation):
    nothing = torch.zeros(2, 5, dtype=torch.bool)
    assert update_totals(nothing) == UpdateTotals(0, 0)
    assert (token_weights(nothing, aggregation, 10) == 0).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any))
@settings(deadline=None)
def test_weights_sum_to_one_over_means_and_ignore_the_padded_width(lengths):
    narrow, wide = (torch.arange(w)[None, :] < torch.tensor(lengths)[:, None] for w in (9, 20))
    for aggregation in ("token_mean", "seq_mean_token_mean"):
        weights = token_weights(narrow, aggregation)
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
        assert torch.equal(token_weights(wide, aggregation)[:, :9], weights)


@pytest.mark.parametrize(
    ("ratio_value", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.56, 0.0),  # above the range, A > 0: clipped at 1.28
        (0.5, 2.0, -1.0, -2.0),  # below the range, A > 0: the way back stays open
        (0.5, -2.0, 1.6, 0.0),  # below the range, A < 0: clipped at 0.8
        (1.5, -2.0, 3.0, 2.0),  # above the range, A < 0: not clipped by the range
        (5.0, -2.0, 6.0, 0.0),  # far above, A < 0: bounded by the dual clip at 3
    ],
)
def test_the_surrogate_is_clipped_on_the_side_that_would_pay(ratio_value, advantage, loss, slope):
    r = vector(ratio_value).requires_grad_()
    value = surrogate(r, vector(advantage), Objective())
    (grad,) = torch.autograd.grad(value.sum(), r)
    assert float(value.detach()) == pytest.approx(loss, abs=1e-15)
    assert float(grad) == pytest.approx(slope, abs=1e-15)


def test_without_dual_clip_a_large_ratio_is_paid_in_full():
    assert float(surrogate(vector(5.0), vector(-2.0), Objective(dual_clip=None))) == 10.0


def test_kl_estimators_have_their_own_values_and_gradients():
    for estimator, value, slope in (
        ("k1", 0.3, 1.0),
        ("k2", 0.045, 0.3),
        ("k3", math.exp(-0.3) - 0.7, 1 - math.exp(-0.3)),
    ):
        logp = vector(-1.0).requires_grad_()
        kl = kl_penalty(logp, vector(-1.3), estimator)
        (grad,) = torch.autograd.grad(kl.sum(), logp)
        assert float(kl) == pytest.approx(value, abs=1e-12)
        assert float(grad) == pytest.approx(slope, abs=1e-12)


def test_gspo_takes_the_mean_over_valid_tokens_and_clips_once():
    # The fourth token is padding with absurd log-probs.
    logp, old = vector(3.0, -3.0, 0.6, 500.0), vector(0.0, 0.0, 0.0, -500.0)
    terms = TokenTerms(
        weight_T=vector(1 / 3, 1 / 3, 1 / 3, 0.0),
        advantage_T=vector(1.0, 1.0, 1.0, 1.0),
        logp_old_T=old,
        sequence_T=torch.zeros(4, dtype=torch.int64),
    )
    s = ratio(logp, terms, "sequence")
    torch.testing.assert_close(s[:3], vector(1.221403, 1.221403, 1.221403), rtol=0, atol=5e-7)
    wide = Objective(kind="sequence", clip_high=0.28)
    assert float(policy_loss(logp, logp, terms, wide).sum()) == pytest.approx(-math.exp(0.2), abs=1e-12)
    narrow = Objective(kind="sequence", clip_high=0.1, clip_low=0.1)
    clipped = logp.clone().requires_grad_()
    loss = policy_loss(clipped, logp, terms, narrow).sum()
    (grad,) = torch.autograd.grad(loss, clipped)
    assert float(loss) == pytest.approx(-1.1, abs=1e-12)
    assert (grad == 0).all()


def test_masked_tokens_stay_finite_where_the_ratio_would_overflow():
    for garbage in (0.0, -math.inf, math.inf, math.nan, 1e30):
        logp = vector(-1.0, garbage).requires_grad_()
        entropy = vector(0.5, garbage).requires_grad_()
        terms = TokenTerms(
            weight_T=vector(1.0, 0.0),
            advantage_T=vector(1.0, garbage),
            logp_old_T=vector(-1.1, -200.0),
            ref_logp_T=vector(-1.2, garbage),
            is_weight_T=vector(1.0, garbage),
        )
        loss = policy_loss(logp, entropy, terms, Objective(kl_coef=0.1, entropy_coef=0.1))
        grads = torch.autograd.grad(loss.sum(), (logp, entropy))
        assert float(loss[1]) == 0.0
        assert all(float(g[1]) == 0.0 and math.isfinite(float(g[0])) for g in grads)


def test_an_overflowing_ratio_of_a_valid_token_is_clamped():
    logp = vector(0.0).requires_grad_()
    terms = TokenTerms(weight_T=vector(1.0), advantage_T=vector(-1.0), logp_old_T=vector(-2000.0))
    loss = policy_loss(logp, logp, terms, Objective(dual_clip=None))
    (grad,) = torch.autograd.grad(loss.sum(), logp)
    assert math.isfinite(float(loss))
    assert math.isfinite(float(grad))


def test_a_number_that_is_not_finite_in_a_valid_token_stays_visible():
    terms = TokenTerms(weight_T=vector(1.0), advantage_T=vector(math.nan))
    assert math.isnan(float(policy_loss(vector(-1.0), vector(1.0), terms, Objective())))


def test_importance_weights_at_token_and_sequence_level():
    trainer, engine = vector(-1.0, -1.0, -1.0, 0.0)[None], vector(-1.0, -2.0, -0.5, math.nan)[None]
    mask = torch.tensor([[True, True, True, False]])

    def weights(mode, level, cap=2.0):
        return importance_weights(trainer, engine, mask, mode=mode, level=level, cap=cap)[0]

    e = math.e
    torch.testing.assert_close(weights("truncate", "token"), vector(1.0, 2.0, e**-0.5, 0.0))
    torch.testing.assert_close(weights("mask", "token"), vector(1.0, 0.0, e**-0.5, 0.0))
    torch.testing.assert_close(weights("truncate", "sequence"), vector(e**0.5, e**0.5, e**0.5, 0.0))
    torch.testing.assert_close(weights("truncate", "sequence", 1.5), vector(1.5, 1.5, 1.5, 0.0))
    assert (weights("mask", "sequence", 1.5) == 0).all()
    assert weights("none", "token").tolist() == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_an_importance_weight_that_is_not_a_number_stays_one(mode, level):
    trainer, engine = vector(-1.0, math.nan)[None], vector(-1.0, -1.0)[None]
    found = importance_weights(trainer, engine, torch.ones(1, 2, dtype=torch.bool), mode=mode, level=level)
    assert math.isnan(float(found[0, 1]))


def test_likelihood_is_cross_entropy_with_a_factor_for_each_token():
    logp = vector(-1.0, -2.0, -4.0, math.nan).requires_grad_()
    terms = TokenTerms(weight_T=vector(0.25, 0.25, 0.25, 0.0), advantage_T=vector(1.0, -1.0, 0.0, 1.0))
    loss = policy_loss(logp, logp, terms, Objective(kind="likelihood"))
    (grad,) = torch.autograd.grad(loss.sum(), logp)
    assert loss.tolist() == [0.25, -0.5, 0.0, 0.0]
    assert grad.tolist() == [-0.25, 0.25, 0.0, 0.0]
    assert ratio(logp, terms, "likelihood").tolist() == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip_high": math.inf}, "clip_high"),
        ({"dual_clip": 1.2}, "dual_clip"),
        ({"kind": "word"}, "kind"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"aggregation": "seq_mean_token_sum_norm"}, "norm_length"),
        ({"kind": "sequence", "aggregation": "token_mean"}, "aggregation"),
        ({"kl_coef": math.nan}, "kl_coef"),
        ({"kind": "likelihood", "kl_coef": 0.1}, "kl_coef"),
        ({"kind": "likelihood", "entropy_coef": 0.1}, "entropy_coef"),
    ],
)
def test_an_impossible_objective_is_refused_naming_the_field(change, field):
    with pytest.raises(ValueError, match=field):
        replace(Objective(), **change)


def test_terms_that_an_objective_needs_are_asked_for_by_name():
    terms = TokenTerms(weight_T=vector(1.0), advantage_T=vector(1.0))
    with pytest.raises(ValueError, match="ref_logp_T"):
        policy_loss(vector(-1.0), vector(1.0), terms, Objective(kl_coef=0.1))
    with pytest.raises(ValueError, match="sequence_T"):
        policy_loss(vector(-1.0), vector(1.0), terms, Objective(kind="sequence"))
    with pytest.raises(ValueError, match="advantage_T must have the shape of weight_T"):
        TokenTerms(weight_T=vector(1.0), advantage_T=vector(1.0, 2.0))
