"""Live linearity inside a real train run: the curves are those of its checkpoints, and a resumed run has the same."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from core.dynamics.live import LiveLinearity
from core.dynamics.target import trajectory_points
from core.store import metrics
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl

FOLLOWED = {"linearity": "live", "looks": None, "damage_stop": None, "save": {"every": 1}, "max_steps": 5}


def curves(service, run_id):
    with service.db.read() as session:
        found = metrics.curves(session, run_id)
    return {
        key: {point.step: point.value for point in curve.points}
        for key, curve in found.items()
        if key.startswith(("linearity/", "early/linearity"))
    }


def test_the_curves_are_those_of_the_checkpoints_and_survive_a_crash(service, pool) -> None:
    run_id = service.post(**FOLLOWED)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    found = curves(service, run_id)
    assert list(found["linearity/median_r2"]) == [3, 4, 5]
    folders = [point.folder for point in trajectory_points(service.db, service.settings, run_id)]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    follower = LiveLinearity(_torch(weights[0]), None, seed=5)
    columns = [
        np.stack([one[name].reshape(-1)[place.numpy()] for one in weights]) for name, place in follower._positions
    ]
    paths_KN = np.concatenate(columns, axis=1).astype(np.float64)
    moved_KN = paths_KN[:, (paths_KN != paths_KN[0]).any(axis=0)]
    r2 = [np.corrcoef(np.arange(6), column)[0, 1] ** 2 for column in moved_KN.T]
    assert found["linearity/mean_r2"][5] == pytest.approx(np.mean(r2), rel=1e-6)
    assert found["linearity/share_above"][5] == pytest.approx(np.mean(np.array(r2) > 0.7))
    assert found["linearity/excess"][5] == pytest.approx(
        found["linearity/share_above"][5] - found["linearity/chance_share_above"][5]
    )

    again = service.post(**FOLLOWED | {"save": {"every": 2}})
    questions = 0

    def killed(question: int) -> None:
        nonlocal questions
        questions = question
        with service.db.read() as session:
            if "linearity/mean_r2" in metrics.keys(session, again):
                raise Killed

    first = service.attempt(again, ScriptedControl(killed))
    with pytest.raises(Killed):
        run_training(first, pool)
    service.lost(first)
    assert questions
    assert run_training(service.attempt(again), pool).state == "succeeded"
    assert curves(service, again) == found


def _torch(weights):
    return {name: torch.from_numpy(value) for name, value in weights.items()}
