"""Whole runs with the algorithms' options: what they record, and the same bits after a kill at every step."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from core.jobs import UserError
from core.rl.optim import AdamW
from core.store import checkpoints, events, metrics, rollouts
from core.train import update
from core.train.loop import run_training
from tests.core.engines.conftest import make_tokenizer
from tests.core.train.service import Killed, ScriptedControl, Service
from tests.core.train.test_resume import QUICK

LINES = [
    {"id": f"i{n}", "prompt": f"{n} + {n}?", "answer": str(2 * n), "meta": {"solution": f"so {2 * n}"}}
    for n in range(40)
]
EVERYTHING: dict[str, Any] = {
    "algorithm": {
        "name": "grpo",
        "mask_truncated": False,
        "dynamic_sampling": {"max_rounds": 2},
        "importance_correction": {"mode": "truncate", "level": "token", "cap": 1.5},
        "kl": {"coef": 0.05, "in_reward": True},
        "entropy_coef": 0.01,
    },
    "prompts_per_step": 2,
    "prompts_per_update": 1,
    "num_generations": 3,
    "rewards": {"random": {"weight": 1.0, "probability": 0.4}},
    "max_completion_length": 4,
    "lr_schedule": "linear",
    "warmup_updates": 3,
}
SUPERVISED: dict[str, Any] = {"rewards": {"auto": 1.0}, "num_generations": 1}
NOISY: dict[str, Any] = {
    **SUPERVISED,
    "algorithm": {"name": "noisy_sft", "noise": "sequence", "p": 0.3},
    "prompts_per_step": 2,
    "prompts_per_update": 1,
}


def curve(service: Service, run_id: str, key: str) -> list[float]:
    with service.db.read() as session:
        return [point.value for point in metrics.curves(session, run_id, keys=[key])[key].points]


def post(service: Service, changes: dict[str, Any], **more: Any) -> str:
    """A quick run on forty sums that have solutions."""
    folder = service.settings.home / "items"
    folder.mkdir(exist_ok=True)
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    service.settings = replace(service.settings, data_dir=folder)
    data = {"dataset": "file:sums.jsonl", "holdout": 5}
    return service.post(**QUICK, **(changes | {"data": data} | more))


def after_the_next_checkpoint(service: Service, run_id: str) -> Callable[[int], None]:
    """A script that kills once a checkpoint newer than the newest now is there, unless it is the last step's."""

    def newest() -> int:
        with service.db.read() as session:
            row = checkpoints.latest(session, run_id)
        return -1 if row is None else row.step

    reached = newest()

    def die(question: int) -> None:
        if reached < newest() < 6:
            raise Killed

    return die


def what_came_out(service: Service, run_id: str) -> dict[str, Any]:
    keys = ("loss", "grad_norm", "entropy", "lr", "weights/changed_share")
    with service.db.read() as session:
        return {
            "weights": {row.step: row.sha256 for row in checkpoints.list_(session, run_id)},
            "curves": {
                key: [(point.step, point.value) for point in found.points]
                for key, found in metrics.curves(session, run_id, keys=keys).items()
            },
            "samples": [
                (row.step, row.group_index, row.item_id, row.token_ids, row.reward, row.advantage, row.used)
                for row in rollouts.page(session, run_id, limit=500).items
            ],
        }


@pytest.mark.slow
@pytest.mark.parametrize("changes", [EVERYTHING, NOISY], ids=["every option", "noisy sft"])
def test_killed_at_every_step_a_run_ends_with_the_same_bits(service, pool, changes) -> None:
    whole = post(service, changes, save={"every": 1}, max_steps=6)
    first = service.attempt(whole)
    service.finish(first, run_training(first, pool))
    killed = post(service, changes, save={"every": 1}, max_steps=6)
    attempts, done = 0, False
    while not done and attempts < 10:
        context = service.attempt(killed, ScriptedControl(after_the_next_checkpoint(service, killed)))
        attempts += 1
        try:
            run_training(context, pool)
            done = True
        except Killed:
            service.lost(context)
    assert attempts == 7
    assert what_came_out(service, killed) == what_came_out(service, whole)


def test_dynamic_sampling_keeps_groups_with_spread_and_stores_what_it_left_out(service, pool) -> None:
    run_id = post(service, EVERYTHING, max_steps=4)
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    with service.db.read() as session:
        rows = rollouts.page(session, run_id, limit=500).items
    rounds = curve(service, run_id, "dynamic_sampling/rounds")
    assert set(rounds) == {1.0, 2.0}, "the coins of this seed must give steps of both kinds"
    for step in range(1, 5):
        here = [row for row in rows if row.step == step]
        groups = {row.group_index: [other for other in here if other.group_index == row.group_index] for row in here}
        used = [place for place, group in groups.items() if group[0].used]
        spread = [place for place, group in groups.items() if len({row.reward for row in group}) > 1]
        assert len(used) == 2
        assert set(spread) <= set(used)
        assert len({group[0].item_id for group in groups.values()}) == len(groups)
        assert all(row.advantage is None for row in here if not row.used)
        assert curve(service, run_id, "dynamic_sampling/kept_share")[step - 1] == len(spread) / len(groups)
        unused = sum(row.n_tokens for row in here if not row.used) / sum(row.n_tokens for row in here)
        assert curve(service, run_id, "dynamic_sampling/unused_tokens_share")[step - 1] == pytest.approx(unused)
        if rounds[step - 1] == 1:
            assert len(groups) == 2


def test_the_curves_of_the_options_are_recorded(service, pool) -> None:
    run_id = post(service, EVERYTHING, max_steps=2)
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    for key in ("mismatch_kl_k1", "mismatch_kl_k3", "logp_gap_max"):
        assert all(abs(value) < 1e-4 for value in curve(service, run_id, f"sampling/{key}")), key
    assert curve(service, run_id, "sampling/importance_sampling_ratio/mean") == pytest.approx([1, 1], abs=1e-4)
    assert curve(service, run_id, "sampling/importance_capped_share") == [0, 0]
    assert curve(service, run_id, "kl_in_reward/penalty")[0] == pytest.approx(0.0, abs=1e-6)
    assert curve(service, run_id, "kl_in_reward/penalty")[1] != 0.0


def test_sft_learns_the_solutions_and_samples_nothing(service, pool) -> None:
    run_id = post(service, SUPERVISED, algorithm="sft", prompts_per_step=5, learning_rate=0.01, max_steps=14)
    context = service.attempt(run_id)
    outcome = run_training(context, pool)
    assert outcome.state == "succeeded"
    nll = curve(service, run_id, "nll")
    assert curve(service, run_id, "loss") == pytest.approx(nll, rel=1e-6)
    assert sum(nll[-7:]) < 0.8 * sum(nll[:7])
    with service.db.read() as session:
        assert rollouts.page(session, run_id).items == []
    # Solutions "so 0".."so 78" with their end token: 5 or 6 tokens of one character each.
    assert all(25 <= tokens <= 30 for tokens in curve(service, run_id, "tokens"))


def test_sft_has_looks_and_a_damage_stop_like_any_run(service, pool) -> None:
    run_id = service.post(
        algorithm="sft", rewards={"auto": 1.0}, num_generations=1, max_steps=3, data={**SUMS, "solution": "{answer}"}
    )
    outcome = run_training(service.attempt(run_id), pool)
    assert outcome.state == "succeeded"
    assert len(curve(service, run_id, "heldout/accuracy")) == 2


SUMS = {
    "dataset": "reasoning_gym:chain_sum",
    "holdout": 20,
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 300},
}


def test_weights_that_are_not_finite_are_never_written(service, pool, monkeypatch) -> None:
    run_id = service.post(**QUICK, max_steps=3, save={"every": 1})
    original = AdamW._apply
    calls: list[int] = []

    def overflow(self: Any, lr: float) -> None:
        original(self, lr)
        calls.append(1)
        if len(calls) == 2:
            next(iter(self.parameters.values())).data[0] = float("inf")

    monkeypatch.setattr(AdamW, "_apply", overflow)
    with pytest.raises(UserError) as refused:
        run_training(service.attempt(run_id), pool)
    assert refused.value.code == "nonfinite_weights"
    with service.db.read() as session:
        assert [row.step for row in checkpoints.list_(session, run_id)] == [0, 1]


def points(service, run_id: str, key: str) -> list[Any]:
    """The points of one curve, those that are not finite included."""
    with service.db.read() as session:
        return list(metrics.curves(session, run_id, keys=[key])[key].points)


def reason_of_skipping_step_2(service, run_id: str) -> str:
    """Of three steps the second alone took no update, and the third did: the reason that was given."""
    with service.db.read() as session:
        weights = {row.step: row.sha256 for row in checkpoints.list_(session, run_id)}
        [skipped] = [one.payload for one in events.page(session, run_id).items if one.type == "update_skipped"]
    assert curve(service, run_id, "updates/skipped") == [0.0, 1.0, 0.0]
    assert weights[2] == weights[1] != weights[3]
    assert skipped["step"] == 2
    return str(skipped["reason"])


def test_one_gradient_that_is_not_a_number_is_recorded_and_the_run_goes_on(service, pool, monkeypatch) -> None:
    run_id = service.post(**QUICK, max_steps=3, save={"every": 1})
    original = AdamW.grad_norm
    steps: list[float] = []

    def poisoned(self: Any) -> float:
        steps.append(1)
        if len(steps) == 2:
            next(iter(self.parameters.values())).grad[0] = float("nan")
        return original(self)

    monkeypatch.setattr(AdamW, "grad_norm", poisoned)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert "model.embed_tokens.weight" in reason_of_skipping_step_2(service, run_id)
    norms = points(service, run_id, "grad_norm")
    assert [(point.value is None, point.nonfinite) for point in norms] == [(False, None), (True, "nan"), (False, None)]


def test_one_loss_that_is_not_a_number_is_on_the_curve_and_the_run_goes_on(service, pool, monkeypatch) -> None:
    run_id = service.post(**QUICK, max_steps=3, save={"every": 1})
    original = update.chunked_backward
    calls: list[int] = []

    def poisoned(*args: Any, **more: Any) -> Any:
        calls.append(1)
        result = original(*args, **more)
        return replace(result, loss_sum=result.loss_sum * float("nan")) if len(calls) == 2 else result

    monkeypatch.setattr(update, "chunked_backward", poisoned)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert "loss" in reason_of_skipping_step_2(service, run_id)
    assert [point.nonfinite for point in points(service, run_id, "loss")] == [None, "nan", None]


def test_a_step_of_truncated_samples_alone_is_skipped_and_the_run_goes_on(service, pool) -> None:
    algorithm = {"name": "grpo", "mask_truncated": True}
    small = {"prompts_per_step": 1, "num_generations": 2, "max_completion_length": 1, "save": {"every": 1}, "seed": 2}
    run_id = service.post(**QUICK, **small, algorithm=algorithm, max_steps=2)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    with service.db.read() as session:
        rows = rollouts.page(session, run_id, limit=100).items
        weights = {row.step: row.sha256 for row in checkpoints.list_(session, run_id)}
    assert {row.finish_reason for row in rows} == {"length"}
    assert curve(service, run_id, "updates/skipped") == [1.0, 1.0]
    assert curve(service, run_id, "loss") == [0.0, 0.0]
    assert weights[0] == weights[1] == weights[2]


def test_at_another_temperature_sampler_and_trainer_agree_and_no_two_samples_share_a_stream(service, pool) -> None:
    run_id = service.post(**QUICK, max_steps=1, temperature=0.6, num_generations=8, max_completion_length=24)
    run_training(service.attempt(run_id), pool)
    assert curve(service, run_id, "sampling/logp_gap")[0] < 1e-5
    assert curve(service, run_id, "ratio/max") == [1.0]
    with service.db.read() as session:
        rows = rollouts.page(session, run_id, limit=100).items
    distinct = {(row.group_index, tuple(row.token_ids)) for row in rows}
    assert curve(service, run_id, "completions/duplicate_share") == [1 - len(distinct) / len(rows)]
    assert len(distinct) > len(rows) / 2


def test_sampled_ids_are_what_is_stored_and_learnt_where_their_text_would_give_others(service, pool) -> None:
    run_id = service.post(**QUICK, max_steps=1, num_generations=8, max_completion_length=24)
    run_training(service.attempt(run_id), pool)
    with service.db.read() as session:
        rows = rollouts.page(session, run_id, limit=100).items
    again = [make_tokenizer()(row.text, add_special_tokens=False).input_ids for row in rows]
    assert any(ids != row.token_ids for ids, row in zip(again, rows, strict=True))
    assert [row.n_tokens for row in rows] == [len(row.token_ids) for row in rows]
    # The engine's log-probs of its ids, and the trainer's of what it learns from, token by token.
    assert curve(service, run_id, "sampling/logp_gap_max")[0] < 1e-4
