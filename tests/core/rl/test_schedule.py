"""Learning rates by update number: both ends exact, warm-up in updates, agreement with transformers' decay."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from core.rl.schedule import learning_rate


def rates(schedule, total, warmup=0, base=1e-6):
    return [learning_rate(schedule, base, u, total=total, warmup=warmup) for u in range(1, total + 1)]


def test_both_ends_are_exactly_as_configured():
    assert rates("constant", 4) == [1e-6] * 4
    assert rates("linear", 4, base=1.0) == [1.0, 0.75, 0.5, 0.25]
    assert rates("linear", 6, warmup=2, base=1.0) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rates("cosine", 3, base=1.0) == pytest.approx([1.0, 0.75, 0.25], abs=1e-15)
    assert rates("constant", 3, warmup=3, base=0.9) == pytest.approx([0.3, 0.6, 0.9], abs=1e-15)


@pytest.mark.parametrize(
    ("name", "make"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_decay_equals_that_of_transformers(name, make, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2e-6)
    scheduler = make(optimizer, warmup, 20)
    theirs = []
    for _ in range(20):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates(name, 20, warmup, 2e-6)[warmup:] == pytest.approx(theirs[warmup:], rel=1e-12)


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 300), st.data())
def test_rates_rise_through_the_warm_up_and_never_after_it_and_are_never_zero(schedule, total, data):
    warmup = data.draw(st.integers(0, total))
    values = rates(schedule, total, warmup, 1.0)
    assert all(0.0 < value <= 1.0 for value in values)
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    assert 1.0 in values


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("step", 1.0, 1, 2, 0), "schedule"),
        (("linear", -1.0, 1, 2, 0), "base"),
        (("linear", 1.0, 0, 2, 0), "update"),
        (("linear", 1.0, 3, 2, 0), "update"),
        (("linear", 1.0, 1, 2, 3), "warmup"),
    ],
)
def test_numbers_outside_the_run_are_refused_by_name(arguments, field):
    schedule, base, update, total, warmup = arguments
    with pytest.raises(ValueError, match=field):
        learning_rate(schedule, base, update, total=total, warmup=warmup)
