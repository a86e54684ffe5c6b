"""R2 from running sums: against all points at once, across restarts and jumps; the walks beside it; the alarm."""

import numpy as np
import pytest
import torch
from scipy import stats

from core.dynamics import live
from core.dynamics.live import Alarm, LiveLinearity
from core.dynamics.nulls import Drive

SIZE = 6400
STEPS = 40


def drive(name="adamw"):
    return Drive(name, 0.9, 0.999 if name == "adamw" else 0.0, (1e-3,) * STEPS)


def follow(paths_KN, *, jumps=(), drive_=None, restart=None, folder=None):
    """Feed rows 1.. of two tensors to a follower; at ``restart`` go on with another that restores what the first saved."""

    def masters(row_N):
        tensor = torch.from_numpy(row_N.astype(np.float32))
        return {"b": tensor[:4000].view(40, 100).clone(), "a": tensor[4000:].clone()}

    follower, curves, offset = LiveLinearity(masters(paths_KN[0]), drive_, seed=3), {}, np.zeros(paths_KN.shape[1])
    for step in range(1, len(paths_KN)):
        if step == restart:
            follower.save(folder)
            follower = LiveLinearity(masters(paths_KN[0] + 7), drive_, seed=3)
            follower.restore(folder, step - 1, masters(paths_KN[step - 1] + offset))
        curves[step] = follower.observe(step, masters(paths_KN[step] + offset))
        if step in jumps:
            offset = offset + 2.0
            follower.jumped(masters(paths_KN[step] + offset))
    return follower, curves


def walk(drift=0.0, seed=0):
    steps = np.random.default_rng(seed).standard_normal((STEPS, SIZE)) + drift
    return np.concatenate([np.zeros((1, SIZE)), steps.cumsum(axis=0)])


def sampled(follower):
    """Columns of the sampled weights in the order of the tensors."""
    starts = {"b": 0, "a": 4000}
    return np.concatenate([starts[name] + place.numpy() for name, place in follower._positions])


def test_r2_is_that_of_the_whole_path():
    paths_KN = walk(drift=0.3).astype(np.float32).astype(np.float64)
    follower, curves = follow(paths_KN)
    columns = sampled(follower)
    assert len(columns) == SIZE // 64
    for step in (3, 10, STEPS):
        expected = [stats.linregress(np.arange(step + 1), paths_KN[: step + 1, at]).rvalue ** 2 for at in columns]
        assert curves[step]["linearity/median_r2"] == pytest.approx(np.median(expected), rel=1e-9)
        assert curves[step]["linearity/mean_r2"] == pytest.approx(np.mean(expected), rel=1e-9)
        assert curves[step]["linearity/share_above"] == np.mean(np.array(expected) > 0.7)
    assert curves[1] == curves[2] == {}


def test_jumps_are_taken_out_of_the_path():
    paths_KN = walk(drift=0.3)
    _, plain = follow(paths_KN)
    _, jumped = follow(paths_KN, jumps=(5, 17))
    assert jumped[STEPS]["linearity/mean_r2"] == pytest.approx(plain[STEPS]["linearity/mean_r2"], abs=1e-4)


@pytest.mark.parametrize("jumps", [(), (5, 17)])
def test_a_restart_goes_on_with_the_same_bits(tmp_path, jumps):
    paths_KN = walk(drift=0.1)
    _, whole = follow(paths_KN, drive_=drive(), jumps=jumps)
    _, parts = follow(paths_KN, drive_=drive(), jumps=jumps, restart=18, folder=tmp_path)
    assert whole == parts


def test_a_checkpoint_of_a_run_that_was_not_followed_begins_a_path_there(tmp_path):
    masters = {"w": torch.zeros(640)}
    follower = LiveLinearity(masters, drive(), seed=0)
    follower.restore(tmp_path, 10, masters)
    for step in range(11, 16):
        masters = {"w": masters["w"] + 1}
        curves = follower.observe(step, masters)
    assert curves["linearity/median_r2"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_noise_through_the_same_optimizer_has_no_excess(name):
    """Weights driven by torch's own optimizer on white gradients: R2 starts high and falls, the excess stays near 0."""
    weights = torch.zeros(64 * 4000, dtype=torch.float32, requires_grad=True)
    optimizer = (
        torch.optim.AdamW([weights], lr=1e-3, weight_decay=0.0)
        if name == "adamw"
        else torch.optim.SGD([weights], lr=1e-3, momentum=0.9)
    )
    generator = torch.Generator().manual_seed(1)
    follower, curves = LiveLinearity({"w": weights}, drive(name), seed=0), {}
    for step in range(1, STEPS + 1):
        weights.grad = torch.randn(weights.shape, generator=generator)
        optimizer.step()
        curves[step] = follower.observe(step, {"w": weights})
    assert curves[10]["linearity/median_r2"] > curves[STEPS]["linearity/median_r2"] + 0.1
    assert max(abs(one["linearity/excess"]) for step, one in curves.items() if step > 3) < 0.05
    assert not any(one.get("early/linearity_breaking") for one in curves.values())


def test_the_alarm_goes_off_once_when_the_excess_has_stayed_low():
    alarm = Alarm()
    for step, excess in enumerate([0.02, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]):
        alarm.see(step, excess)
    assert alarm.take() is None, "an excess within chance warns of nothing"
    for step, excess in enumerate([0.4, 0.5, 0.2, 0.3, 0.2, 0.2, 0.2, 0.2], start=10):
        alarm.see(step, excess)
        assert Alarm.of(alarm.state()).state().tolist() == alarm.state().tolist()
    assert alarm.take() is None
    alarm.see(18, 0.2)
    assert alarm.on
    assert alarm.take() == {"warning": "linearity_breaking", "step": 18, "excess": 0.2, "peak": 0.5}
    alarm.see(19, 0.2)
    assert alarm.take() is None
    alarm.see(20, 0.3)
    assert not alarm.on


def test_no_more_than_the_sample_is_kept():
    masters = {"w": torch.zeros(64 * 100)}
    follower = LiveLinearity(masters, None, seed=0)
    assert sum(len(place) for _, place in follower._positions) == 6400 // live.ONE_IN
