"""A train run and an evaluation through the real vLLM on a CPU, with a tiny tied model that both engines can serve."""

import pytest

from core.evals.job import run_evaluation
from core.store import evaluations, events, metrics, prompts, rollouts
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.engines.conftest import make_llama
from tests.core.train.service import TINY, Service

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]


def answers(session, evaluation_id: str) -> list[list[int]]:
    records = evaluations.records_after(session, evaluation_id, None, 100)
    return [list(record.token_ids) for record in sorted(records, key=lambda record: record.item_id)]


SHORT = {"max_steps": 3, "max_prompt_length": 160, "max_completion_length": 6, "save": {"every": 3}}


@pytest.fixture
def serving(service: Service) -> Service:
    """The tests' service with heads wide enough for vLLM's attention on a CPU."""
    make_llama(head_dim=32).save_pretrained(service.settings.models_dir / TINY)
    return service


def test_a_run_samples_each_step_from_the_weights_that_the_step_before_left(
    serving: Service, pool: VerifierPool
) -> None:
    """Engine and trainer agree on log-probs at every step although the weights move far, so no sample is of old ones."""
    run_id = serving.post(engine="vllm", looks={"every": 3, "m": 8, "base_runs": 2}, learning_rate=0.02, **SHORT)
    outcome = run_training(serving.attempt(run_id), pool)
    assert (outcome.state, outcome.reason) == ("succeeded", "3 steps finished")
    with serving.db.read() as session:
        curves = metrics.curves(session, run_id)
        samples = rollouts.page(session, run_id, limit=100).items
        asked = prompts.get_many(session, {sample.prompt_sha256 for sample in samples})
        opened = [event.payload for event in events.page(session, run_id).items if event.type == "engine_opened"]
        base = evaluations.base_evaluations(session, run_id, "holdout")
    assert [point.value for point in curves["sampling/logp_gap"].points] == pytest.approx([0, 0, 0], abs=1e-4)
    assert curves["weights/changed_share"].points[-1].value > 0.5
    assert {(sample.step, sample.weights_version) for sample in samples} == {(1, 0), (2, 1), (3, 2)}
    assert len({tuple(sample.token_ids) for sample in samples}) > len(samples) / 2
    assert all(list(prompt.token_ids).count(1) == 1 for prompt in asked.values())
    assert [(settings["engine"], settings["in_process"]) for settings in opened] == [("vllm", True)]
    assert base[0].engine == opened[0]
    for part in ("rollout", "grading", "update", "handover"):
        assert all(point.value >= 0 for point in curves[f"time/{part}"].points)

    compared = serving.post_recipe(
        {
            "kind": "eval",
            "model": f"run:{run_id}/last",
            "against": ["base"],
            "suites": ["holdout"],
            "engine": "vllm",
            "max_prompt_length": 160,
            "max_completion_length": 6,
            "device": {"kind": "cpu", "memory_gib": 4},
        }
    )
    assert run_evaluation(serving.attempt(compared), pool).reason == "2 evaluations finished"
    with serving.db.read() as session:
        trained, start = evaluations.list_for_run(session, compared)
        tokens = [answers(session, row.id) for row in (trained, start, base[0])]
    assert (trained.engine["engine"], trained.engine["in_process"]) == ("vllm", True)
    assert tokens[0] != tokens[1] == tokens[2]
