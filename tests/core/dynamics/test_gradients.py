"""Group gradients against plain autograd, what their inner products say on known data, and the analysis of real runs."""

import numpy as np
import pytest
import torch

from core.dynamics import gradients
from core.dynamics.gradients import Coordinates, Sampled
from core.dynamics.job import run_analysis
from core.rl.objective import Objective
from core.store import analyses
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.engines.conftest import make_llama
from tests.core.train.service import Service

GROUP = [
    Sampled((1, 5, 9), (4, 6, 7, 2), 0.7),
    Sampled((1, 5, 9), (8,), -0.4),
    Sampled((1, 5, 9), (3, 3), -0.3),
    Sampled((1, 5, 9), (11, 12, 13), 5.0, counts=False),
]


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "token_mean"])
def test_a_groups_gradient_is_that_of_the_plain_loss(aggregation):
    model = make_llama().requires_grad_(True)
    gradients.group_gradient(model, GROUP, Objective(aggregation=aggregation), temperature=0.8, chunk=3)
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    counted = [one for one in GROUP if one.counts]
    tokens = sum(len(one.completion_ids) for one in counted)
    loss = 0.0
    for one in counted:
        logits_TV = model(input_ids=torch.tensor([one.prompt_ids + one.completion_ids])).logits[0] / 0.8
        rows = torch.arange(len(one.prompt_ids) - 1, logits_TV.shape[0] - 1)
        logp_T = logits_TV.log_softmax(-1)[rows, torch.tensor(one.completion_ids)]
        weight = 1 / tokens if aggregation == "token_mean" else 1 / (len(counted) * len(one.completion_ids))
        loss = loss - one.advantage * weight * logp_T.sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_coordinates_are_the_gradients_own_numbers():
    model = make_llama().requires_grad_(True)
    gradients.group_gradient(model, GROUP, Objective(), temperature=1.0)
    coordinates = Coordinates(model, seed=0)
    assert coordinates.count == coordinates.total == sum(one.numel() for one in model.parameters())
    expected = torch.cat([dict(model.named_parameters())[name].grad.flatten() for name, _ in coordinates.places])
    torch.testing.assert_close(coordinates.read(model), expected)


def test_signal_and_noise_of_known_gradients():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        stacked = rng.standard_normal((8, 50)) + 0.5
        found.append(gradients.signal_to_noise(stacked @ stacked.T))
    # The expected gradient is 0.5 in 50 coordinates: squared norm 12.5; one group scatters by 50 around it.
    assert np.mean([one["signal"] for one in found]) == pytest.approx(12.5, rel=0.05)
    assert np.mean([one["noise"] for one in found]) == pytest.approx(50, rel=0.02)
    assert found[0]["snr_of_the_mean"] == pytest.approx(8 * found[0]["snr"])
    assert gradients.signal_to_noise(np.eye(1))["snr"] is None


def test_alignment_lies_beyond_chance_for_a_common_direction_only():
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(400)
    noise = rng.standard_normal((12, 400))

    def aligned(stacked):
        norm = float(np.linalg.norm(direction))
        return gradients.alignment(stacked @ stacked.T, stacked @ direction, norm, seed=0)

    found = aligned(noise + 0.3 * direction)
    mean = (noise + 0.3 * direction).mean(axis=0)
    expected = mean @ direction / np.linalg.norm(mean) / np.linalg.norm(direction)
    assert found["cosine"] == pytest.approx(expected)
    assert found["cosine"] > found["chance"]
    chance = [aligned(rng.standard_normal((12, 400))) for _ in range(60)]
    assert 0.8 < np.mean([abs(one["cosine"]) < one["chance"] for one in chance]) <= 1


def test_leave_one_out_leaves_the_update_itself_out():
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((10, 3000))
    found = gradients.leave_one_out(noise @ noise.T, seed=0)
    others = noise.sum(axis=0) - noise[3]
    expected = noise[3] @ others / np.linalg.norm(noise[3]) / np.linalg.norm(others)
    assert found[3]["cosine"] == pytest.approx(expected)
    # With itself in the sum an update of ten would have a cosine near 0.3 by arithmetic alone.
    assert max(abs(one["cosine"]) for one in found) < 0.08
    drift = noise + 0.3
    beyond = [one["cosine"] > one["chance"] for one in gradients.leave_one_out(drift @ drift.T, seed=0)]
    assert np.mean(beyond) > 0.9


def test_autocorrelation_by_lag():
    gram = np.array([[1.0, 0.5, 0.1, 0.0], [0.5, 1, 0.5, 0.1], [0.1, 0.5, 1, 0.5], [0.0, 0.1, 0.5, 1]])
    found = gradients.autocorrelation(gram, 5)
    assert [(one["lag"], one["pairs"]) for one in found] == [(1, 3), (2, 2)]
    assert [one["value"] for one in found] == pytest.approx([0.5, 0.1])


# ---- real runs --------------------------------------------------------------------------------------------------


def analysed(service, target, *compute):
    run_id = service.post_recipe({"kind": "analysis", "run": f"run:{target}", "compute": list(compute), "seed": 1})
    context = service.attempt(run_id)
    assert run_analysis(context).state == "succeeded"
    with service.db.read() as session:
        return {row.name: row.result for row in analyses.list_for_run(session, run_id)}


def test_a_real_run_is_measured_at_every_checkpoint_that_sampled(tmp_path):
    service = Service(tmp_path)
    with VerifierPool() as pool:
        run_id = service.post(
            rewards={"auto": 1.0, "random": 1.0},
            looks=None,
            damage_stop=None,
            max_steps=4,
            prompts_per_step=2,
            save={"every": 1},
            max_completion_length=4,
        )
        context = service.attempt(run_id)
        service.finish(context, run_training(context, pool))
    found = analysed(service, run_id, {"name": "gradient_noise", "groups": 2})["gradient_noise"]
    assert [(one["from"], one["to"]) for one in found["updates"]] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    # The last checkpoint sampled nothing.
    assert [row["step"] for row in found["gradients"]] == [0, 1, 2, 3]
    assert [one["step"] for one in found["factor"]] == [1, 2, 3, 4]
    assert all(-1 <= one["cosine"] <= 1 for one in found["updates"])
    assert set(found["curves"]) == {"leave-one-out", "alignment", "signal-to-noise", "factor"}
    assert "updates point along the others" in found["statement"]
