"""Linearity while a run trains: R2 of a seeded sample of weights from running sums, without keeping checkpoints.

With d = w - w_0, R2 against the step needs the sums of d, d^2 and t d alone; they are kept in float64 for 1 weight in 64.
Beside them a set of walks under the run's own optimizer and schedule goes through the same sums, since noise with momentum
looks linear at first and breaks later by itself: what warns is the excess over these walks, never R2 alone. The walks' numbers
come from streams named by the update, so they are not part of the state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.dynamics.nulls import Drive
from core.dynamics.sampling import sampled_positions
from core.dynamics.tensor_file import Array
from core.streams import stream_seed

STATE_FILE = "linearity.safetensors"
ONE_IN = 64
THRESHOLD = 0.7
FEWEST_POINTS = 4
WARN_EXCESS = 0.1
"""An excess that never reached this is within what one run's chance gives, so its fall warns of nothing."""
WARN_STEPS = 5

_WALKS = 4096
_SUMS = ("d", "dd", "td")

Masters = Mapping[str, Tensor]


class LiveLinearity:
    """Follows the masters of one run. The path begins with the weights it is given, at step ``begins_at``.

    A jump (:meth:`jumped`) is taken out of the path. Memory: 40 bytes for each sampled weight, on the host.
    """

    def __init__(self, masters: Masters, drive: Drive | None, *, seed: int, begins_at: int = 0) -> None:
        self._seed = seed
        self._positions = _positions(masters, seed)
        start_N = self._sample(masters)
        self._start_N = start_N
        self._taken_out_N = torch.zeros_like(start_N)
        self._last_N = start_N.clone()
        self._sums = {name: torch.zeros_like(start_N) for name in _SUMS}
        self._times: list[int] = [begins_at]
        self._walks = None if drive is None else _Walks(drive, seed, begins_at)
        self._alarm = Alarm()

    def observe(self, step: int, masters: Masters) -> dict[str, float]:
        """Add the weights of a finished step and return the curves; none before there are enough points."""
        now_N = self._sample(masters)
        self._last_N = now_N
        change_N = now_N - self._start_N - self._taken_out_N
        time = float(step - self._times[0])
        self._sums["d"] += change_N
        self._sums["dd"] += change_N.square()
        self._sums["td"] += time * change_N
        self._times.append(step)
        if self._walks is not None:
            self._walks.advance(step)
        if len(self._times) < FEWEST_POINTS:
            return {}
        return self._curves()

    def jumped(self, masters: Masters) -> None:
        """The masters are no longer those of the last step but those after a jump: go on from where the path was."""
        now_N = self._sample(masters)
        self._taken_out_N += now_N - self._last_N
        self._last_N = now_N

    def save(self, folder: Path) -> None:
        """Write the state into a checkpoint's folder."""
        state = {f"sum.{name}": value for name, value in self._sums.items()}
        state |= {"start": self._start_N, "taken_out": self._taken_out_N, "last": self._last_N}
        state |= {"times": torch.tensor(self._times), "alarm": self._alarm.state()}
        save_file(state, folder / STATE_FILE)

    def restore(self, folder: Path, step: int, masters: Masters) -> None:
        """Go on from a checkpoint's state; one without (of a run that was not followed) begins a path of its own here."""
        path = folder / STATE_FILE
        if not path.is_file():
            self._begin(step, masters)
            return
        state = load_file(path)
        if state["start"].shape != self._start_N.shape:
            raise ValueError(f"{path.parent.name}/{STATE_FILE} follows other weights than this run has")
        self._sums = {name: state[f"sum.{name}"] for name in _SUMS}
        self._start_N, self._taken_out_N, self._last_N = state["start"], state["taken_out"], state["last"]
        self._times = [int(time) for time in state["times"]]
        self._alarm = Alarm.of(state["alarm"])
        if self._walks is not None:
            self._walks.replay(self._times)

    @property
    def warned(self) -> dict[str, Any] | None:
        """What the alarm says when it has just gone off, once."""
        return self._alarm.take()

    def _begin(self, step: int, masters: Masters) -> None:
        self._start_N = self._sample(masters)
        self._last_N = self._start_N.clone()
        self._taken_out_N.zero_()
        for value in self._sums.values():
            value.zero_()
        self._times = [step]
        self._alarm = Alarm()
        if self._walks is not None:
            self._walks.replay(self._times)

    def _curves(self) -> dict[str, float]:
        r2_N = _r2({name: value.numpy() for name, value in self._sums.items()}, self._times)
        if not len(r2_N):
            return {}
        share = float((r2_N > THRESHOLD).mean())
        curves = {
            "linearity/median_r2": float(np.median(r2_N)),
            "linearity/mean_r2": float(r2_N.mean()),
            "linearity/share_above": share,
        }
        if self._walks is not None:
            chance = self._walks.share_above(self._times)
            excess = share - chance
            self._alarm.see(self._times[-1], excess)
            curves |= {
                "linearity/chance_share_above": chance,
                "linearity/excess": excess,
                "early/linearity_breaking": float(self._alarm.on),
            }
        return curves

    def _sample(self, masters: Masters) -> Tensor:
        parts = [masters[name].detach().reshape(-1)[place.to(masters[name].device)] for name, place in self._positions]
        return torch.cat([part.to("cpu", torch.float64) for part in parts])


def _positions(masters: Masters, seed: int) -> list[tuple[str, Tensor]]:
    """Sample 1 in 64 of all weights in the order of their names."""
    total = sum(master.numel() for master in masters.values())
    count, at, found = max(1, total // ONE_IN), 0, []
    for name in sorted(masters):
        stop = at + masters[name].numel()
        drawn = sampled_positions(at, stop, total=total, n=count, seed=stream_seed(seed, "linearity", "live"))
        if len(drawn):
            found.append((name, torch.from_numpy(drawn - at)))
        at = stop
    return found


def _r2(sums: Mapping[str, Array], times: list[int]) -> Array:
    """R2 of the paths that moved, from their sums over the points after the origin, where d is 0."""
    t_K = np.asarray(times, dtype=np.float64) - times[0]
    count, mean = len(t_K), t_K.mean()
    moved = sums["dd"] > 0
    d_M, dd_M, td_M = (sums[name][moved] for name in _SUMS)
    spread_M = dd_M - d_M**2 / count
    with np.errstate(divide="ignore", invalid="ignore"):
        r2_M = (td_M - mean * d_M) ** 2 / (((t_K - mean) ** 2).sum() * spread_M)
    found: Array = np.clip(r2_M, 0.0, 1.0)
    return found


class _Walks:
    """Weights whose gradients are white noise, under the run's optimizer, with the same running sums."""

    def __init__(self, drive: Drive, seed: int, begins_at: int) -> None:
        self._drive = drive
        self._seed = seed
        self._reset(begins_at)

    def _reset(self, step: int) -> None:
        self._first = step
        self._weight_N, self._m_N, self._v_N = (np.zeros(_WALKS) for _ in range(3))
        self._sums = {name: np.zeros(_WALKS) for name in _SUMS}
        # Moments are those of a run that began at update 0, wherever the path begins.
        self._update = 0
        self._run_to(step)
        self._start_N = self._weight_N.copy()

    def advance(self, step: int) -> None:
        """Take the updates up to ``step`` and add its point."""
        self._run_to(step)
        change_N = self._weight_N - self._start_N
        self._sums["d"] += change_N
        self._sums["dd"] += change_N**2
        self._sums["td"] += (step - self._first) * change_N

    def replay(self, times: list[int]) -> None:
        """Go through the points of a path again from its beginning."""
        self._reset(times[0])
        for step in times[1:]:
            self.advance(step)

    def share_above(self, times: list[int]) -> float:
        """Share of the walks whose R2 is above the threshold."""
        r2_N = _r2(self._sums, times)
        return float((r2_N > THRESHOLD).mean()) if len(r2_N) else 0.0

    def _run_to(self, step: int) -> None:
        drive = self._drive
        while self._update < step * drive.updates_per_step:
            self._update += 1
            rng = np.random.default_rng(stream_seed(self._seed, "linearity", "live", "walk", self._update))
            gradient_N = rng.standard_normal(_WALKS)
            rate = drive.rates[self._update - 1]
            if drive.optimizer == "sgd":
                self._m_N = drive.beta1 * self._m_N + gradient_N
                self._weight_N = self._weight_N - rate * self._m_N
                continue
            self._m_N = drive.beta1 * self._m_N + (1 - drive.beta1) * gradient_N
            self._v_N = drive.beta2 * self._v_N + (1 - drive.beta2) * gradient_N**2
            corrected_N = np.sqrt(self._v_N / (1 - drive.beta2**self._update))
            self._weight_N = self._weight_N - rate * (self._m_N / (1 - drive.beta1**self._update)) / corrected_N


@dataclass
class Alarm:
    """Linearity is breaking: an excess that was above chance has stayed below half of its peak for some steps."""

    peak: float = 0.0
    below: int = 0
    on: bool = False
    new: dict[str, Any] | None = None

    def see(self, step: int, excess: float) -> None:
        """Take one step's excess over the walks."""
        self.peak = max(self.peak, excess)
        low = self.peak >= WARN_EXCESS and excess < self.peak / 2
        self.below = self.below + 1 if low else 0
        before, self.on = self.on, self.below >= WARN_STEPS
        if self.on and not before:
            self.new = {"warning": "linearity_breaking", "step": step, "excess": excess, "peak": self.peak}

    def take(self) -> dict[str, Any] | None:
        """Return what has gone off since the last call."""
        new, self.new = self.new, None
        return new

    def state(self) -> Tensor:
        """The numbers that a checkpoint has to hold."""
        return torch.tensor([self.peak, float(self.below), float(self.on)], dtype=torch.float64)

    @classmethod
    def of(cls, state: Tensor) -> "Alarm":
        """The alarm as it was."""
        return cls(float(state[0]), int(state[1]), bool(state[2]))
