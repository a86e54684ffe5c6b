"""The chunked backward against the whole-logits float64 oracle: loss and every gradient, for every option."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from core.rl.chunked import backward_hidden, chunked_backward, chunked_logprobs
from core.rl.objective import Objective, TokenTerms
from core.rl.packing import plan_micro_batches
from tests.core.rl.driver import run_update
from tests.core.rl.oracle import LENGTHS, VOCAB, WIDTH, TinyModel, anchor, log_probs, make_batch, oracle_loss

OPTIONS = {
    "default": {},
    "no dual clip": {"dual_clip": None},
    "tight dual clip": {"dual_clip": 1.3},
    "symmetric clip": {"clip_low": 0.1, "clip_high": 0.1},
    "token mean": {"aggregation": "token_mean"},
    "constant divisor": {"aggregation": "seq_mean_token_sum_norm", "norm_length": 10.0},
    "k1": {"kl_coef": 0.3, "kl_estimator": "k1"},
    "k2": {"kl_coef": 0.3, "kl_estimator": "k2"},
    "k3": {"kl_coef": 0.3, "kl_estimator": "k3"},
    "entropy": {"entropy_coef": 0.2},
    "all at once": {"kl_coef": 0.3, "entropy_coef": 0.2, "aggregation": "token_mean", "dual_clip": 1.5},
    "gspo": {"kind": "sequence", "clip_low": 0.05, "clip_high": 0.1},
    "gspo with kl and entropy": {"kind": "sequence", "kl_coef": 0.3, "entropy_coef": 0.2, "dual_clip": 1.3},
}


def oracle(model, batch, options, *, temperature=0.7, use_is=False):
    loss = oracle_loss(model, batch, options, temperature=temperature, use_is=use_is)
    named = model.parameters()
    return float(loss.detach()), dict(zip(named, torch.autograd.grad(loss, named.values()), strict=True))


def assert_same(outcome, expected, tolerance=1e-11):
    loss, grads = expected
    assert outcome.loss == pytest.approx(loss, rel=tolerance, abs=tolerance)
    assert outcome.grads.keys() == grads.keys()
    for name, grad in grads.items():
        assert float(grad.abs().max()) > 1e-4, "the oracle's gradient must be something to compare with"
        torch.testing.assert_close(outcome.grads[name], grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("use_is", [False, True], ids=["plain", "importance weights"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_loss_and_every_gradient_equal_the_oracle_at_every_chunk_size(options, tied, use_is):
    model = TinyModel.new(tied=tied)
    batch = anchor(make_batch(), model)
    expected = oracle(model, batch, options, use_is=use_is)
    for chunk in (1, 7, 64, 10_000):
        assert_same(run_update(model, batch, Objective(**options), chunk=chunk, use_is=use_is), expected)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_temperature_scales_logits_and_gradients(temperature):
    model = TinyModel.new(3)
    batch = anchor(make_batch(4), model)
    options = {"kl_coef": 0.1, "entropy_coef": 0.1}
    expected = oracle(model, batch, options, temperature=temperature)
    assert_same(run_update(model, batch, Objective(**options), temperature=temperature), expected)


@pytest.mark.parametrize(
    "options", [OPTIONS["all at once"], OPTIONS["gspo with kl and entropy"]], ids=["token", "gspo"]
)
@given(budget=st.integers(1, 60), chunk=st.integers(1, 70))
@settings(max_examples=15, deadline=None)
def test_the_cut_into_micro_batches_and_chunks_changes_nothing(options, budget, chunk):
    model = TinyModel.new(tied=True)
    batch = anchor(make_batch(), model)
    whole = run_update(model, batch, Objective(**options), chunk=10_000)
    parts = plan_micro_batches(LENGTHS, budget)
    cut = run_update(model, batch, Objective(**options), chunk=chunk, micro_batches=parts)
    assert_same(cut, (whole.loss, whole.grads))
    assert cut.stats.means() == pytest.approx(whole.stats.means(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "options", [OPTIONS["all at once"], OPTIONS["gspo with kl and entropy"]], ids=["token", "gspo"]
)
def test_the_order_of_the_sequences_changes_nothing(options):
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    whole = run_update(model, batch, Objective(**options))
    shuffled = run_update(model, batch, Objective(**options), micro_batches=[[4, 1, 5], [2, 0, 3]])
    assert_same(shuffled, (whole.loss, whole.grads))


@pytest.mark.parametrize("garbage", [0.0, -math.inf, math.nan, 1e30])
@pytest.mark.parametrize(
    "options", [OPTIONS["all at once"], OPTIONS["gspo with kl and entropy"]], ids=["token", "gspo"]
)
def test_padding_contributes_exactly_nothing_whatever_it_holds(options, garbage):
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    clean = run_update(model, batch, Objective(**options), use_is=True)
    for values in (batch.old_BS, batch.ref_BS, batch.is_BS):
        values[~batch.mask_BS] = garbage
    batch.inputs_BS[~batch.mask_BS] = 0
    batch.targets_BS[~batch.mask_BS] = VOCAB - 1
    dirty = run_update(model, batch, Objective(**options), use_is=True)
    assert dirty.loss == clean.loss
    for name, grad in clean.grads.items():
        assert torch.equal(dirty.grads[name], grad)
    assert dirty.stats == clean.stats
    assert (dirty.logp_BS[~batch.mask_BS] == 0).all()


def test_hidden_states_that_are_not_finite_at_masked_tokens_do_no_harm():
    model = TinyModel.new()
    hidden, targets = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    hidden[3] = math.nan
    weight = torch.tensor([0.2, 0.2, 0.0, 0.0, 0.2], dtype=torch.float64)
    terms = TokenTerms(weight_T=weight, advantage_T=torch.ones(5, dtype=torch.float64))
    buffer = torch.zeros_like(model.head)
    result = chunked_backward(hidden, model.head.detach(), targets, terms, Objective(), weight_grad_VH=buffer)
    assert torch.isfinite(buffer).all()
    assert (result.grad_hidden_TH[2:4] == 0).all()
    assert result.stats.tokens == 3


def test_a_wider_padding_changes_nothing():
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    expected = run_update(model, batch, Objective())
    for name in ("inputs_BS", "targets_BS", "mask_BS", "old_BS", "ref_BS", "is_BS"):
        values = getattr(batch, name)
        setattr(batch, name, torch.cat([values, values.new_zeros(len(values), 11)], 1))
    assert_same(run_update(model, batch, Objective()), (expected.loss, expected.grads))


def test_a_truncated_sample_taken_out_equals_a_batch_without_it():
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    batch.mask_BS[3] = False
    rest = [0, 1, 2, 4, 5]
    with_it = run_update(model, batch, Objective())
    for name in ("inputs_BS", "targets_BS", "mask_BS", "old_BS", "ref_BS", "is_BS", "advantage_B"):
        setattr(batch, name, getattr(batch, name)[rest])
    without = run_update(model, batch, Objective())
    assert_same(with_it, (without.loss, without.grads))


def test_a_micro_batch_without_a_surviving_token_gives_loss_zero_and_finite_gradients():
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    batch.mask_BS[:] = False
    for kind in ("token", "sequence"):
        outcome = run_update(model, batch, Objective(kind=kind, entropy_coef=0.1))
        assert outcome.loss == 0.0
        assert all((grad == 0).all() for grad in outcome.grads.values())
        assert (outcome.stats.tokens, outcome.stats.means()) == (0, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_the_first_on_policy_ratio_is_exactly_one_at_a_real_vocabulary(dtype, kind):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 16, generator=generator).to(dtype)
    weight = torch.randn(151_936, 16, generator=generator).to(dtype)
    targets = torch.randint(0, 151_936, (11,), generator=generator)
    old, entropy = chunked_logprobs(hidden, weight, targets, temperature=0.6, chunk=4)
    assert old.dtype == entropy.dtype == torch.float32
    exact = torch.log_softmax((hidden @ weight.T).double() / 0.6, -1)
    torch.testing.assert_close(old.double(), exact.gather(1, targets[:, None])[:, 0], rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=0, atol=5e-5)
    terms = TokenTerms(torch.full((11,), 1 / 11), torch.ones(11), old, sequence_T=torch.arange(11) // 4)
    result = chunked_backward(
        hidden, weight, targets, terms, Objective(kind=kind), temperature=0.6, chunk=4, weight_grad_VH=None
    )
    assert torch.equal(result.logp_T, old)
    assert (result.stats.ratio_max, result.stats.ratio, result.stats.approx_kl_k1) == (1.0, 11.0, 0.0)


def test_leaving_out_the_old_log_probs_is_the_same_as_giving_the_current_ones():
    model = TinyModel.new()
    batch = make_batch()
    batch.old_BS = log_probs(model, batch, 0.7)[0].detach()
    given_ones = run_update(model, batch, Objective())
    left_out = run_update(model, batch, Objective(), on_policy=True)
    assert_same(left_out, (given_ones.loss, given_ones.grads))
    assert left_out.stats.ratio_max == 1.0


def test_the_second_update_of_a_rollout_is_off_policy_and_can_clip():
    model = TinyModel.new()
    batch = make_batch()
    batch.old_BS = log_probs(model, batch, 0.7)[0].detach()
    first = run_update(model, batch, Objective())
    assert first.stats.ratio_max == pytest.approx(1.0, abs=1e-12)
    assert max(float(grad.abs().max()) for grad in first.grads.values()) > 0
    with torch.no_grad():
        for name, parameter in model.parameters().items():
            parameter.sub_(first.grads[name], alpha=1.0)
    second = run_update(model, batch, Objective())
    assert second.stats.ratio_max > 1.01
    assert second.stats.clip_low + second.stats.clip_high > 0
    assert second.stats.approx_kl_k3 > 0


def test_statistics_equal_a_count_by_hand():
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    stats = run_update(model, batch, Objective(), micro_batches=[[0, 5], [1, 2, 3, 4]]).stats
    logp, entropy = (value.detach() for value in log_probs(model, batch, 0.7))
    low = high = dual = 0
    ratios, kept = [], []
    for b, t in batch.mask_BS.nonzero().tolist():
        r, a = math.exp(float(logp[b, t] - batch.old_BS[b, t])), float(batch.advantage_B[b])
        ratios.append(r)
        kept.append((float(logp[b, t]), float(entropy[b, t]), float(batch.ref_BS[b, t])))
        low += a < 0 and r < 0.8
        high += a > 0 and r > 1.28
        dual += a < 0 and r > 3.0
    n = sum(LENGTHS)
    assert low
    assert high
    assert (stats.tokens, stats.clip_low, stats.clip_high, stats.clip_dual) == (n, low, high, dual)
    means = stats.means()
    assert means["ratio"] == pytest.approx(sum(ratios) / n)
    assert means["ratio_max"] == pytest.approx(max(ratios))
    assert means["approx_kl_k1"] == pytest.approx(-sum(map(math.log, ratios)) / n)
    assert means["approx_kl_k3"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / n)
    assert means["entropy"] == pytest.approx(sum(e for _, e, _ in kept) / n)
    assert means["ref_kl_k1"] == pytest.approx(sum(p - q for p, _, q in kept) / n)
    mean = sum(p for p, _, _ in kept) / n
    assert means["logp_std"] == pytest.approx(math.sqrt(sum((p - mean) ** 2 for p, _, _ in kept) / n))
    assert means["logp_min"] == pytest.approx(min(p for p, _, _ in kept))


class LargestTensor(TorchDispatchMode):
    """Records the largest result of any operation that does not live in one of the given buffers."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, tensor.numel())
        return out


@pytest.mark.parametrize("buffer_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_no_tensor_of_tokens_times_vocabulary_and_no_second_head_gradient_exist(kind, dtype, buffer_dtype):
    tokens, vocab, width, chunk = 96, 20_000, 12, 8
    hidden = torch.randn(tokens, width).to(dtype)
    weight = torch.randn(vocab, width).to(dtype)
    targets = torch.randint(0, vocab, (tokens,))
    buffer = torch.zeros(vocab, width, dtype=buffer_dtype)
    terms = TokenTerms(
        torch.full((tokens,), 1 / tokens),
        torch.randn(tokens),
        ref_logp_T=torch.randn(tokens) - 10,
        sequence_T=torch.arange(tokens) // 8,
    )
    objective = Objective(kind=kind, kl_coef=0.1, entropy_coef=0.1)
    with LargestTensor(hidden, weight, buffer) as seen:
        chunked_logprobs(hidden, weight, targets, chunk=chunk)
        chunked_backward(hidden, weight, targets, terms, objective, chunk=chunk, weight_grad_VH=buffer)
    assert seen.largest == chunk * vocab
    assert seen.largest < vocab * width < tokens * vocab


def test_the_memory_test_would_notice_whole_logits():
    hidden, weight = torch.randn(96, 12), torch.randn(2000, 12)
    with LargestTensor(hidden, weight) as seen:
        torch.log_softmax(hidden @ weight.T, -1)
    assert seen.largest == 96 * 2000


@pytest.mark.parametrize("buffer_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_weights_accumulate_into_either_buffer(buffer_dtype):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*s, generator=generator).bfloat16() for s in ((40, 16), (5000, 16)))
    targets = torch.randint(0, 5000, (40,), generator=generator)
    terms = TokenTerms(torch.full((40,), 1 / 40), torch.randn(40, generator=generator))
    exact = torch.zeros(5000, 16, dtype=torch.float64)
    chunked_backward(hidden.double(), weight.double(), targets, terms, Objective(), weight_grad_VH=exact)
    buffer = torch.zeros(5000, 16, dtype=buffer_dtype)
    result = chunked_backward(hidden, weight, targets, terms, Objective(), chunk=8, weight_grad_VH=buffer)
    assert result.grad_hidden_TH.dtype == torch.bfloat16
    error = (buffer.double() - exact).norm() / exact.norm()
    assert 0 < float(error) < 0.02


def test_the_gradient_adds_to_what_the_buffer_holds():
    model = TinyModel.new()
    batch = anchor(make_batch(), model)
    hidden = model.body(model.embedding[batch.inputs_BS]).detach().flatten(0, 1)
    weights = torch.full((hidden.shape[0],), 0.1, dtype=torch.float64)
    terms = TokenTerms(weights, torch.ones_like(weights))
    empty, filled = torch.zeros_like(model.head), torch.full_like(model.head, 2.5)
    for buffer in (empty, filled):
        args = (hidden, model.head.detach(), batch.targets_BS.flatten(), terms, Objective())
        chunked_backward(*args, weight_grad_VH=buffer)
    torch.testing.assert_close(filled - 2.5, empty, rtol=0, atol=1e-14)


@pytest.mark.parametrize("extra", [{"bias_V": torch.zeros(23)}, {"logit_softcap": 30.0}, {"logit_scale": 0.5}])
def test_a_head_that_is_more_than_a_matrix_is_refused_by_name(extra):
    hidden, weight, targets = torch.zeros(2, 6), torch.zeros(23, 6), torch.zeros(2, dtype=torch.int64)
    (name,) = extra
    terms = TokenTerms(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match=name):
        chunked_logprobs(hidden, weight, targets, **extra)
    with pytest.raises(ValueError, match=name):
        chunked_backward(hidden, weight, targets, terms, Objective(), weight_grad_VH=None, **extra)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"chunk": 0}, "chunk"),
        ({"targets_T": torch.zeros(3, dtype=torch.int64)}, "targets_T"),
        ({"weight_VH": torch.zeros(23, 5)}, "weight_VH"),
        ({"weight_VH": torch.zeros(23, 6, dtype=torch.bfloat16)}, "weight_VH"),
        ({"weight_grad_VH": torch.zeros(22, 6)}, "weight_grad_VH"),
        ({"terms": TokenTerms(torch.ones(3), torch.ones(3))}, "weight_T"),
        ({"objective": Objective(kl_coef=0.1)}, "ref_logp_T"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(change, field):
    arguments = {
        "hidden_TH": torch.zeros(2, 6),
        "weight_VH": torch.zeros(23, 6),
        "targets_T": torch.zeros(2, dtype=torch.int64),
        "terms": TokenTerms(torch.ones(2), torch.ones(2)),
        "objective": Objective(),
        "weight_grad_VH": None,
    }
    with pytest.raises(ValueError, match=field):
        chunked_backward(**(arguments | change))


def test_the_body_backward_refuses_a_detached_or_foreign_hidden_state():
    grad = torch.zeros(WIDTH, 6)
    with pytest.raises(ValueError, match="no graph"):
        backward_hidden(torch.zeros(WIDTH, 6), grad)
    with pytest.raises(ValueError, match="same rows"):
        backward_hidden(torch.zeros(2, 6, requires_grad=True), grad)
