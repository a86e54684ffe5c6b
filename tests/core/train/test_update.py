"""One update against plain autograd on the whole loss: same loss, same gradients, whatever the layout."""

import math

import pytest
import torch

from core.engines.models import body_and_head
from core.rl.objective import Objective
from core.rl.optim import SGD
from core.train.update import Head, TrainSequence, build_micro_batches, score, update
from tests.core.train.tiny import tiny_llama

SEQUENCES = [
    TrainSequence((5, 6, 7), (8, 9), 1.5),
    TrainSequence((5, 6, 7), (10, 11, 12, 2), -0.5),
    TrainSequence((3,), (4, 2), -0.5),
    TrainSequence((3, 20, 21, 22, 23), (2,), -0.5),
    TrainSequence((3, 20), (30, 31, 32, 33, 34), 9.0, counts=False),
]
CPU = torch.device("cpu")


def oracle(model, old=None, objective=Objective(), temperature=1.0):  # noqa: B008
    """Sequence-mean of token-mean clipped surrogate, one unpadded sequence at a time, by autograd."""
    total = torch.zeros((), dtype=torch.float64)
    kept = [row for row in SEQUENCES if row.counts]
    for place, row in enumerate(kept):
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        logits = model(ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1] / temperature
        logp = logits.log_softmax(-1)[range(len(row.completion_ids)), list(row.completion_ids)]
        ratio = (logp - (logp.detach() if old is None else old[place])).exp()
        clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        loss = -torch.minimum(ratio * row.advantage, clipped * row.advantage)
        total = total + loss.mean() / len(kept)
    return total


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def run(model, plan, *, lr=0.0, chunk=3, temperature=1.0, old=None, sequences=SEQUENCES):
    body, weight_VH, tied = body_and_head(model)
    optimizer = SGD(model.named_parameters(), lr=lr)
    batches = build_micro_batches(sequences, plan, CPU)
    return update(
        body,
        Head(weight_VH, temperature, chunk, tied),
        optimizer,
        sequences,
        batches,
        objective=Objective(),
        lr=lr,
        max_grad_norm=None,
        old_logp=old,
        ref_logp=None,
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("plan", [[[0, 1, 2, 3, 4]], [[0], [1], [2], [3], [4]], [[4, 2], [0, 3, 1]]])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_loss_and_gradients_are_those_of_the_whole_batch(tied, plan, chunk) -> None:
    model = tiny_llama(tied=tied)
    expected_loss = oracle(model, temperature=0.7)
    expected_loss.backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    result = run(model, plan, chunk=chunk, temperature=0.7)
    assert result.loss == pytest.approx(float(expected_loss.detach()), rel=1e-12)
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12, msg=name)


def test_a_sample_taken_out_changes_nothing_wherever_it_sits() -> None:
    model = tiny_llama()
    run(model, [[0, 1, 2, 3, 4]])
    with_it = gradients(model)
    model.zero_grad(set_to_none=True)
    run(model, [[0, 1, 2, 3]], sequences=SEQUENCES[:4])
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, with_it[name], rtol=1e-9, atol=1e-12)


def test_first_ratio_is_exactly_one_and_the_second_update_is_off_policy() -> None:
    model = tiny_llama(dtype=torch.float32)
    body, weight_VH, _ = body_and_head(model)
    plan = [[0, 1], [2, 3, 4]]
    batches = build_micro_batches(SEQUENCES, plan, CPU)
    old = score(body, Head(weight_VH, 1.0, 3), batches)
    first = run(model, plan, lr=0.5, old=old)
    assert first.stats.ratio_max == 1.0
    assert first.stats.approx_kl_k3 == 0.0
    second = run(model, plan, lr=0.5, old=old)
    assert second.stats.ratio_max > 1.01
    assert second.stats.clip_low + second.stats.clip_high > 0


def test_when_no_token_survives_no_step_is_tried() -> None:
    model = tiny_llama()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gone = [TrainSequence(row.prompt_ids, row.completion_ids, row.advantage, counts=False) for row in SEQUENCES]
    result = run(model, [[0, 1, 2, 3, 4]], lr=1.0, sequences=gone)
    assert result.step is None
    assert result.loss == 0.0
    assert all(torch.equal(left, right) for left, right in zip(before, model.parameters(), strict=True))


def test_a_gradient_that_is_not_a_number_changes_no_weight() -> None:
    model = tiny_llama()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    poisoned = [TrainSequence(SEQUENCES[0].prompt_ids, SEQUENCES[0].completion_ids, math.nan), *SEQUENCES[1:]]
    result = run(model, [[0, 1, 2, 3, 4]], lr=1.0, sequences=poisoned)
    assert result.step is not None
    assert not result.step.applied
    assert math.isnan(result.loss)
    assert all(torch.equal(left, right) for left, right in zip(before, model.parameters(), strict=True))
