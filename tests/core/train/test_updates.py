"""The updates of a step against the float64 oracle: every algorithm and option, however the samples are laid out."""

import math
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engines.models import body_and_head
from core.recipes import parse_recipe
from core.rl.optim import SGD, AdamW
from core.train.update import Head, TrainSequence
from core.train.updates import Updater
from core.train.weighing import weigh
from tests.core.train.oracle import Sampled, first_update, token_logp
from tests.core.train.tiny import tiny_llama

TEMPERATURE = 0.7
KL_REWARD = {"coef": 0.3, "in_reward": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo"},
    "population": {"name": "grpo", "std": "population", "aggregation": "token_mean"},
    "dr_grpo": {"name": "grpo", "std": "none", "aggregation": "seq_mean_token_sum_norm", "norm_length": 9},
    "rloo": {"name": "rloo"},
    "centered": {"name": "centered", "entropy_coef": 0.1},
    "rpp": {"name": "reinforce_plus_plus"},
    "rpp baseline": {"name": "reinforce_plus_plus", "baseline": True, "variance": "population"},
    "gspo": {"name": "gspo", "kl": {"coef": 0.2}},
    "k1 in reward": {"name": "grpo", "kl": KL_REWARD | {"estimator": "k1"}},
    "k2 in reward": {"name": "rloo", "kl": KL_REWARD | {"estimator": "k2"}},
    "k3 in reward": {"name": "gspo", "kl": KL_REWARD | {"estimator": "k3"}},
    "kl per token": {"name": "reinforce_plus_plus", "kl": KL_REWARD | {"estimator": "k1"}},
    "kl and baseline": {"name": "reinforce_plus_plus", "baseline": True, "kl": KL_REWARD | {"estimator": "k1"}},
    "truncated tokens": {"name": "grpo", "importance_correction": {"mode": "truncate", "level": "token", "cap": 1.1}},
    "masked tokens": {"name": "reinforce_plus_plus", "importance_correction": {"mode": "mask", "cap": 1.1}},
    "truncated sequences": {
        "name": "gspo",
        "importance_correction": {"mode": "truncate", "level": "sequence", "cap": 1.05},
    },
    "masked sequences": {
        "name": "grpo",
        "aggregation": "token_mean",
        "entropy_coef": 0.1,
        "kl": {"coef": 0.2, "estimator": "k2"},
        "importance_correction": {"mode": "mask", "level": "sequence", "cap": 1.05},
    },
}


def samples_of(model: Any) -> list[Sampled]:
    """Two groups of four, of several lengths; one without a verdict, one out of the loss; engine log-probs a little off."""
    noise = torch.Generator().manual_seed(3)
    raw = [
        ((5, 6, 7), (8, 9), 1.0, 0, False),
        ((5, 6, 7), (10, 11, 12, 2), 0.0, 0, False),
        ((5, 6, 7), (4,), None, 0, False),
        ((5, 6, 7), (30, 31, 32, 33, 34), 0.0, 0, True),
        ((3, 20, 21, 22), (2,), 0.5, 1, False),
        ((3, 20, 21, 22), (4, 2, 2), 1.0, 1, False),
        ((3, 20, 21, 22), (40, 41, 42, 43, 44, 45, 2), 0.0, 1, False),
        ((3, 20, 21, 22), (50, 2), 1.0, 1, False),
    ]
    found = []
    for prompt, completion, reward, group, masked in raw:
        bare = Sampled(prompt, completion, reward, group, (), masked)
        with torch.no_grad():
            logp = token_logp(model, bare, TEMPERATURE)[0]
        engine = logp + 0.2 * torch.randn(len(completion), generator=noise, dtype=torch.float64)
        found.append(Sampled(prompt, completion, reward, group, tuple(engine.tolist()), masked))
    return found


class TinyPolicy:
    """What Updater asks of a policy, around a tiny Llama in float64 and another one as the start model."""

    def __init__(
        self, *, optimizer: Any = SGD, lr: float = 0.0, chunk: int = 3, dtype: torch.dtype = torch.float64
    ) -> None:
        self.model, start = tiny_llama(dtype=dtype), tiny_llama(dtype=dtype, seed=1)
        self.start_model = start
        self.body, weight_VH, tied = body_and_head(self.model)
        self.head = Head(weight_VH, TEMPERATURE, chunk, tied)
        self.optimizer = optimizer(self.model.named_parameters(), lr=lr)
        start.requires_grad_(False)
        start_body, start_VH, _ = body_and_head(start)
        self.reference = SimpleNamespace(at_hand=lambda: nullcontext((start_body, Head(start_VH, TEMPERATURE, chunk))))
        self.device = torch.device("cpu")

    @contextmanager
    def training(self, step: int) -> Any:
        yield

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}


def recipe_of(options: dict[str, Any], **changes: Any) -> Any:
    return parse_recipe(
        {
            "kind": "train", "model": "tiny", "data": {"dataset": "file:a.jsonl", "holdout": 0}, "algorithm": options,
            "max_steps": 4, "prompts_per_step": 2, "num_generations": 4, "max_completion_length": 16,
            "device": {"kind": "cpu"}, "temperature": TEMPERATURE, "max_grad_norm": 1e9, "learning_rate": 0.0,
        } | changes,
        known_models=["tiny"],
    )  # fmt: skip


def take(policy: TinyPolicy, samples: list[Sampled], recipe: Any, budget: int = 64, step: int = 1) -> Any:
    sequences = [
        TrainSequence(s.prompt, s.completion, 0.0, counts=s.reward is not None and not s.masked) for s in samples
    ]
    return Updater(recipe, policy, budget).take(
        sequences,
        step,
        engine_logp=[s.engine_logp for s in samples],
        weigh=lambda logp, ref: weigh(
            recipe.algorithm,
            [s.reward for s in samples],
            [s.group for s in samples],
            [0 if s.masked else len(s.completion) for s in samples],
            logp=logp,
            ref_logp=ref,
        ),
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_loss_and_every_gradient_equal_the_oracle(options) -> None:
    policy = TinyPolicy()
    samples = samples_of(policy.model)
    expected = first_update(policy.model, policy.start_model, samples, options, temperature=TEMPERATURE)
    expected.backward()
    wanted = policy.gradients()
    assert max(float(grad.abs().max()) for grad in wanted.values()) > 1e-3
    again = TinyPolicy(chunk=7)
    [result] = take(again, samples, recipe_of(options), budget=30).results
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-10, abs=1e-12)
    for name, grad in again.gradients().items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-8, atol=1e-11, msg=name)


@given(
    options=st.sampled_from(list(OPTIONS.values())),
    budget=st.integers(1, 80),
    chunk=st.integers(1, 40),
    order=st.permutations([0, 1, 2, 3]),
    swap=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_neither_layout_nor_order_changes_loss_or_gradient(options, budget, chunk, order, swap) -> None:
    plain, cut = TinyPolicy(), TinyPolicy(chunk=chunk)
    samples = samples_of(plain.model)
    groups = [samples[:4], samples[4:]][:: -1 if swap else 1]
    shuffled = [group[place] for group in groups for place in order]
    [first] = take(plain, samples, recipe_of(options), 1000).results
    [second] = take(cut, shuffled, recipe_of(options), budget).results
    assert second.loss == pytest.approx(first.loss, rel=1e-10, abs=1e-12)
    for name, grad in cut.gradients().items():
        torch.testing.assert_close(grad, plain.gradients()[name], rtol=1e-8, atol=1e-11, msg=name)


@pytest.mark.parametrize("name", ["grpo", "gspo", "reinforce_plus_plus"])
def test_the_second_update_of_a_rollout_is_off_policy(name) -> None:
    policy = TinyPolicy(lr=0.5)
    samples = [s for s in samples_of(policy.model) if not s.masked and s.reward is not None]
    groups = [samples[:2], samples[2:4]]
    recipe = recipe_of({"name": name}, prompts_per_update=1, num_generations=2, learning_rate=0.5)
    taken = take(policy, [s for g in groups for s in g], recipe)
    first, second = taken.results
    assert first.stats.ratio_max == 1.0
    assert first.stats.clip_low + first.stats.clip_high == 0
    assert second.stats.ratio_max != 1.0
    assert second.stats.clip_low + second.stats.clip_high + second.stats.clip_dual > 0
    fresh = TinyPolicy()
    for sample, logp in zip(samples[:4], taken.logp, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(logp, token_logp(fresh.model, sample, TEMPERATURE)[0], rtol=1e-10, atol=1e-12)


def test_warm_up_and_decay_count_updates_and_end_with_the_last_of_them() -> None:
    """Two updates a step: six of the eight follow a warm-up of two, and the last has a sixth of the rate."""
    changes = {"prompts_per_update": 1, "lr_schedule": "linear", "warmup_updates": 2, "learning_rate": 0.6}
    updater = Updater(recipe_of({"name": "grpo"}, **changes), TinyPolicy(), 64)
    rates = [updater.learning_rate(step, place) for step in range(1, 5) for place in range(2)]
    assert rates == pytest.approx([0.3, 0.6, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], rel=1e-12)


def test_a_sample_out_of_the_loss_is_scored_once_and_alone() -> None:
    policy = TinyPolicy()
    samples = samples_of(policy.model)
    scored: list[int] = []
    body = policy.body

    def counting(**inputs: Any) -> Any:
        scored.append(inputs["input_ids" if "input_ids" in inputs else "inputs_embeds"].shape[0])
        return body(**inputs)

    policy.body = counting
    taken = take(policy, samples, recipe_of({"name": "grpo"}), budget=1000)
    assert scored == [2, 6]  # the two that do not count, then the update itself
    for sample, logp in zip(samples, taken.logp, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(logp, token_logp(policy.model, sample, TEMPERATURE)[0], rtol=1e-10, atol=1e-12)


def test_when_nothing_counts_no_step_is_tried_and_nothing_moves() -> None:
    policy = TinyPolicy(lr=1.0)
    before = [parameter.detach().clone() for parameter in policy.model.parameters()]
    samples = [_but(s, masked=True) for s in samples_of(policy.model)]
    for options in ({"name": "grpo"}, {"name": "grpo", "kl": KL_REWARD, "importance_correction": "truncate"}):
        taken = take(policy, samples, recipe_of(options, learning_rate=1.0))
        assert [result.step for result in taken.results] == [None]
        assert taken.results[0].loss == 0.0
        assert len(taken.logp) == len(samples)
    assert all(torch.equal(left, right) for left, right in zip(before, policy.model.parameters(), strict=True))


def test_an_empty_completion_counts_in_nothing() -> None:
    policy, other = TinyPolicy(), TinyPolicy()
    samples = samples_of(policy.model)
    empty = Sampled(samples[0].prompt, (), 0.0, 0, ())
    masked = Sampled(samples[0].prompt, (9,), 0.0, 0, (-1.0,), masked=True)
    recipe = recipe_of({"name": "grpo"})
    with_it = take(policy, [*samples[:3], empty, *samples[4:]], recipe).results[0]
    without = take(other, [*samples[:3], masked, *samples[4:]], recipe).results[0]
    assert with_it.loss == pytest.approx(without.loss, rel=1e-12)
    for name, grad in policy.gradients().items():
        torch.testing.assert_close(grad, other.gradients()[name], rtol=1e-9, atol=1e-12)


POISON = {
    "forward": lambda policy, samples: policy.head.weight_VH.data[8].fill_(math.nan),
    "engine log-prob": lambda policy, samples: samples.__setitem__(0, _but(samples[0], engine_logp=(math.nan, -1.0))),
    "start model": lambda policy, samples: policy.start_model.get_input_embeddings().weight.data[5].fill_(math.nan),
    "moment": lambda policy, samples: policy.optimizer.moments["exp_avg"]["model.norm.weight"].fill_(math.nan),
    "gradient": lambda policy, samples: policy.model.model.norm.weight.register_hook(lambda grad: grad * math.nan),
}


def _but(sample: Sampled, **changes: Any) -> Sampled:
    return replace(sample, **changes)


@pytest.mark.parametrize("where", list(POISON))
def test_a_number_that_is_not_finite_anywhere_changes_no_bit(where) -> None:
    policy = TinyPolicy(optimizer=AdamW, lr=0.1)
    samples = samples_of(policy.model)
    options = {"name": "grpo", "kl": {"coef": 0.1}, "importance_correction": "truncate"}
    take(policy, samples, recipe_of(options, learning_rate=0.1))
    POISON[where](policy, samples)
    weights = {name: value.detach().clone() for name, value in policy.model.named_parameters()}
    state = {name: value.clone() for name, value in policy.optimizer.state_tensors().items()}
    [result] = take(policy, samples, recipe_of(options, learning_rate=0.1), step=2).results
    assert result.step is not None
    assert not result.step.applied
    assert result.step.nonfinite
    for name, value in policy.model.named_parameters():
        assert torch.equal(value.detach().view(torch.int64), weights[name].view(torch.int64)), name
    for name, value in policy.optimizer.state_tensors().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0, equal_nan=True)


def test_a_sample_without_a_verdict_leaves_the_statistics_and_the_loss() -> None:
    policy = TinyPolicy()
    samples = samples_of(policy.model)
    samples[1] = _but(samples[1], reward=None)
    taken = take(policy, samples, recipe_of({"name": "grpo"}))
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert taken.weighed.result.advantages_B[:4].tolist() == pytest.approx([half, 0.0, 0.0, -half])
    assert taken.weighed.result.valid_B[:4].tolist() == [True, False, False, True]
    assert math.isfinite(taken.results[0].loss)


def test_an_end_token_that_is_the_padding_too_keeps_its_loss() -> None:
    policy, other = TinyPolicy(), TinyPolicy()
    samples = [_but(s, completion=(*s.completion[:-1], 0)) for s in samples_of(policy.model)]
    expected = first_update(policy.model, policy.start_model, samples, {"name": "grpo"}, temperature=TEMPERATURE)
    expected.backward()
    [result] = take(other, samples, recipe_of({"name": "grpo"}), budget=1000).results
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-10)
    for name, grad in other.gradients().items():
        torch.testing.assert_close(grad, policy.gradients()[name], rtol=1e-8, atol=1e-11, msg=name)
