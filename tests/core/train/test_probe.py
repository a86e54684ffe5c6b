"""A probe of the tiny recipe: everything the report promises, measured, and nothing left behind."""

from types import SimpleNamespace
from typing import Any

import pytest

from core.store import checkpoints, events, metrics
from core.train import probe
from core.train.probe import REPORT, pass_rate_histogram, run_probe
from tests.core.train.service import ScriptedControl, Service


@pytest.fixture(scope="module")
def probed(tmp_path_factory, pool):
    service = Service(tmp_path_factory.mktemp("probe"))
    run_id = service.post()
    context = service.attempt(run_id)
    outcome = run_probe(context, pool, seconds=20.0)
    service.finish(context, outcome)
    with service.db.read() as session:
        (report,) = events.payloads(session, run_id, REPORT)
    return service, run_id, outcome, report


def test_the_report_has_prompts_groups_shares_memory_speed_and_time(probed) -> None:
    _, _, outcome, report = probed
    assert outcome.state == "succeeded"
    assert report["prompts"][0]["tokens"] > 0
    assert report["prompts"][0]["text"]
    assert 1 <= len(report["groups"]) <= 3
    assert all(len(group["samples"]) == 4 for group in report["groups"])
    assert sum(report["pass_rate_histogram"]) == len(report["groups"])
    assert len(report["pass_rate_histogram"]) == 5
    assert 0 <= report["zero_variance_share"] <= 1
    assert 0 <= report["truncated_share"] <= 1
    # Micro-batches are whole longest sequences: 200 + 8 tokens.
    assert report["memory"]["tokens"] % 208 == 0
    assert report["memory"]["peak_gib"] > 0.05
    assert report["speed"]["decoded_tokens_per_s"] > 0
    assert report["eta"]["seconds"] >= 6 * report["eta"]["step_s"] > 0


def test_the_samples_are_those_of_the_runs_first_step(probed, pool) -> None:
    from core.store import rollouts
    from core.train.loop import run_training

    service, _, _, report = probed
    real = service.post(max_steps=1, looks=None, damage_stop=None)
    context = service.attempt(real)
    service.finish(context, run_training(context, pool))
    with service.db.read() as session:
        rows = rollouts.page(session, real, limit=100).items
    texts = [row.text for row in sorted(rows, key=lambda row: (row.group_index, row.sample))]
    found = [sample["text"] for group in report["groups"] for sample in group["samples"]]
    assert found == texts[: len(found)]


def test_it_leaves_no_checkpoint_and_no_curve(probed) -> None:
    service, run_id, _, _ = probed
    with service.db.read() as session:
        assert checkpoints.list_(session, run_id) == []
        assert metrics.curves(session, run_id) == {}
    assert not (service.settings.run_dir(run_id) / "checkpoints").exists()


@pytest.mark.parametrize(("asked", "state"), [("cancel", "cancelled"), ("pause", "paused"), ("drain", "interrupted")])
def test_a_request_ends_it_without_a_report(service, pool, asked: str, state: str) -> None:
    run_id = service.post()
    outcome = run_probe(service.attempt(run_id, ScriptedControl(lambda _: asked)), pool, seconds=5.0)
    assert outcome.state == state
    with service.db.read() as session:
        assert events.payloads(session, run_id, REPORT) == []


class _Clocked:
    """An engine that takes a second for every token of its longest completion."""

    def __init__(self) -> None:
        self.now = 0.0

    def generate(self, requests: Any, params: Any) -> None:
        self.now += params.max_tokens


def test_completions_are_cut_to_a_third_of_the_time(monkeypatch) -> None:
    from core.engines.base import SamplingParams

    engine = _Clocked()
    monkeypatch.setattr(probe, "monotonic", lambda: engine.now)
    params = SamplingParams(temperature=1.0, max_tokens=5000)
    assert probe._affordable(engine, (1, 2), params, seconds=600.0) == 200
    assert probe._affordable(engine, (1, 2), params, seconds=60_000.0) == 5000
    assert probe._affordable(engine, (1, 2), params, seconds=1.0) == 16


def test_the_histogram_counts_groups_by_their_right_answers() -> None:
    def group(*verdicts: str | None) -> list[Any]:
        made = [None if v is None else SimpleNamespace(verdict=SimpleNamespace(value=v)) for v in verdicts]
        return [SimpleNamespace(reward=SimpleNamespace(verdict=verdict)) for verdict in made]

    groups = [group("correct", "wrong", "wrong"), group("wrong", "wrong", None), group("correct", "correct", "wrong")]
    assert pass_rate_histogram(groups, 3) == [1, 1, 1, 0]
