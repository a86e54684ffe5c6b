"""Which job a runner gives an analysis to: those that make weights have one of their own."""

from types import SimpleNamespace
from typing import Any

import pytest

import core.dynamics.job
import core.weights.job
from core.recipes import parse_recipe
from worker.runner import dispatch


@pytest.mark.parametrize(
    ("compute", "job"),
    [
        ("extrapolate", "weights"),
        ({"name": "export", "export": {"step": 4}}, "weights"),
        ("weight_linearity", "dynamics"),
    ],
)
def test_analyses_that_make_weights_have_their_own_job(compute: Any, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.weights.job, "run_weights", lambda context: "weights")
    monkeypatch.setattr(core.dynamics.job, "run_analysis", lambda context: "dynamics")
    recipe = parse_recipe({"kind": "analysis", "run": "run:7f3a", "compute": [compute]})
    assert dispatch(SimpleNamespace(recipe=recipe)) == job  # type: ignore[arg-type,comparison-overlap]
