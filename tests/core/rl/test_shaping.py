"""The KL in the reward, by hand on two short samples."""

import math

import pytest
import torch

from core.rl.advantages import whitened_returns
from core.rl.shaping import kl_penalties, returns_to_go

MASK = torch.tensor([[True, True, False], [True, True, True]])
OLD = torch.tensor([[-1.0, -2.0, math.nan], [-1.0, -1.0, -1.0]], dtype=torch.float64)
REF = torch.tensor([[-1.5, -1.0, -math.inf], [-1.0, -3.0, -1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "per_token"),
    [
        ("k1", [[0.5, -1.0], [0.0, 2.0, 0.0]]),
        ("k2", [[0.125, 0.5], [0.0, 2.0, 0.0]]),
        ("k3", [[math.exp(-0.5) - 0.5, math.e - 2], [0.0, math.exp(-2) + 1, 0.0]]),
    ],
)
def test_the_penalty_is_the_estimate_at_each_token_and_nothing_behind_it(estimator, per_token) -> None:
    found = kl_penalties(OLD, REF, MASK, coef=0.1, estimator=estimator)
    assert found[0].tolist() == pytest.approx([0.1 * x for x in per_token[0]] + [0.0], abs=1e-15)
    assert found[1].tolist() == pytest.approx([0.1 * x for x in per_token[1]], abs=1e-15)


def test_the_return_of_a_token_has_the_penalties_from_there_on() -> None:
    penalties = kl_penalties(OLD, REF, MASK, coef=0.1, estimator="k1")
    returns = returns_to_go(torch.tensor([1.0, 0.0]), penalties, MASK)
    assert returns[0].tolist() == pytest.approx([1.05, 1.1, 0.0])
    assert returns[1].tolist() == pytest.approx([-0.2, -0.2, 0.0])


def test_whitened_returns_are_reinforce_plus_plus_by_hand() -> None:
    returns = returns_to_go(torch.tensor([1.0, 0.0]), kl_penalties(OLD, REF, MASK, coef=0.1), MASK)
    values = [1.05, 1.1, -0.2, -0.2, 0.0]
    mean = sum(values) / 5
    scale = math.sqrt(sum((x - mean) ** 2 for x in values) / 4 + 1e-8)
    expected = [(x - mean) / scale for x in values]
    assert whitened_returns(returns, MASK)[MASK].tolist() == pytest.approx(expected)


def test_a_log_prob_that_is_not_a_number_stays_visible_where_it_counts() -> None:
    broken = OLD.clone()
    broken[0, 0] = math.nan
    assert math.isnan(float(kl_penalties(broken, REF, MASK, coef=0.1)[0, 0]))
