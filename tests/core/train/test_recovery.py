"""Runs continue: with weights-only retention, from an older checkpoint when the newest is damaged, and with pinned models."""

from pathlib import Path
from typing import Any

import pytest

from core.engines.manifest import file_sha256
from core.jobs import UserError
from core.store import checkpoints, evaluations, events, runs
from core.tasks.pool import VerifierPool
from core.train import checkpoints as folders
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl, Service
from tests.core.train.test_resume import QUICK, fork, steps_with_reward, trained


def rows_of(service: Service, run_id: str) -> list[Any]:
    with service.db.read() as session:
        return checkpoints.list_(session, run_id)


def weights(service: Service, run_id: str) -> dict[int, str]:
    return {row.step: row.sha256 for row in rows_of(service, run_id)}


def told(service: Service, run_id: str, kind: str) -> list[dict[str, Any]]:
    with service.db.read() as session:
        return [event.payload for event in events.page(session, run_id).items if event.type == kind]


def killed_at(question: int) -> ScriptedControl:
    def die(asked: int) -> None:
        if asked >= question:
            raise Killed

    return ScriptedControl(die)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> dict[int, str]:
    service = Service(tmp_path_factory.mktemp("quick"))
    return weights(service, trained(service, pool, **QUICK, max_steps=4))


def test_a_run_that_saves_no_optimizer_state_continues_after_a_crash(service, pool, undisturbed) -> None:
    run_id = service.post(**QUICK, max_steps=4, save={"every": 2, "optimizer": False})
    context = service.attempt(run_id, killed_at(6))
    with pytest.raises(Killed):
        run_training(context, pool)
    assert [row.step for row in rows_of(service, run_id)] == [0, 2]
    service.lost(context)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert weights(service, run_id) == undisturbed


def test_only_the_newest_checkpoint_keeps_optimizer_state_and_every_folder_verifies(service, pool) -> None:
    run_id = trained(service, pool, **QUICK, max_steps=4, save={"every": 2, "optimizer": False})
    rows = rows_of(service, run_id)
    assert [(row.step, row.has_optimizer) for row in rows] == [(0, False), (2, False), (4, True)]
    for row in rows:
        folder = service.settings.home / row.path
        assert folders.verify_checkpoint(folder) == row.sha256
        assert (folder / folders.OPTIMIZER).exists() == row.has_optimizer
        with service.db.read() as session:
            files = {file.name: (file.bytes, file.sha256) for file in checkpoints.files(session, row.id)}
        assert {path.name: path.stat().st_size for path in folder.iterdir()} == {n: f[0] for n, f in files.items()}
        assert files[folders.MANIFEST][1] == file_sha256(folder / folders.MANIFEST)
        assert row.bytes == sum(size for size, _ in files.values())


def test_optimizer_state_that_a_waiting_fork_needs_stays(service, pool) -> None:
    parent = service.post(**QUICK, max_steps=4, save={"every": 1, "optimizer": False})
    waiting: list[str] = []

    def fork_step_2(question: int) -> None:
        if not waiting and any(row.step == 2 for row in rows_of(service, parent)):
            waiting.append(fork(service, parent, 2, **QUICK, max_steps=3))

    context = service.attempt(parent, ScriptedControl(fork_step_2))
    service.finish(context, run_training(context, pool))
    assert [row.step for row in rows_of(service, parent) if row.has_optimizer] == [2, 4]
    assert run_training(service.attempt(waiting[0]), pool).state == "succeeded"


def test_a_crash_before_the_old_optimizer_file_went_leaves_work_for_the_next_attempt(
    service, pool, monkeypatch
) -> None:
    run_id = service.post(**QUICK, max_steps=4, save={"every": 2, "optimizer": False})
    context = service.attempt(run_id)

    def die(folder: Path) -> None:
        if "step-2" in folder.name:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(folders, "drop_optimizer", die)
        with pytest.raises(Killed):
            run_training(context, pool)
    left = service.settings.home / rows_of(service, run_id)[1].path / folders.OPTIMIZER
    assert left.exists()
    service.lost(context)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert not left.exists()
    folders.verify_checkpoint(left.parent)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_next_older_good_one(service, pool, undisturbed, file) -> None:
    run_id = service.post(**QUICK, max_steps=4, save={"every": 1})
    context = service.attempt(run_id, killed_at(8))
    with pytest.raises(Killed):
        run_training(context, pool)
    newest = rows_of(service, run_id)[-1]
    assert newest.step == 3
    path = service.settings.home / newest.path / file
    path.write_bytes(path.read_bytes()[:-40])
    service.lost(context)
    second = service.attempt(run_id)
    assert run_training(second, pool).state == "succeeded"
    [event] = told(service, run_id, "checkpoint_damaged")
    assert (event["id"], event["step"]) == (newest.id, 3)
    assert file in event["problem"]
    with service.db.read() as session:
        assert checkpoints.by_id(session, newest.id).deleted_at is not None
        assert runs.attempts(session, run_id)[-1].resumed_from_step == 2
    assert weights(service, run_id)[4] == undisturbed[4]
    assert steps_with_reward(service, run_id) == [1, 2, 3, 4]


def test_a_damaged_checkpoint_of_the_parent_is_the_forks_to_mend(service, pool) -> None:
    parent = trained(service, pool, **QUICK, max_steps=2)
    (service.settings.home / rows_of(service, parent)[-1].path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match=r"step-2/model\.safetensors") as refused:
        run_training(service.attempt(fork(service, parent, 2, **QUICK, max_steps=3)), pool)
    assert refused.value.code == "damaged_checkpoint"


def test_a_model_named_last_stays_what_it_was_at_the_first_attempt(service, pool) -> None:
    parent = service.post(**QUICK, max_steps=4, save={"every": 1, "keep": 1})
    children: list[str] = []

    def begin_a_child(question: int) -> None:
        if children or not any(row.step == 1 for row in rows_of(service, parent)):
            return
        children.append(service.post(**QUICK, max_steps=1, model=f"run:{parent}/last"))
        child = service.attempt(children[0], ScriptedControl(lambda _: "drain"))
        assert run_training(child, pool).state == "interrupted"
        service.lost(child)

    context = service.attempt(parent, ScriptedControl(begin_a_child))
    service.finish(context, run_training(context, pool))
    assert [row.step for row in rows_of(service, parent)] == [0, 1, 4]  # the child's is spared
    assert run_training(service.attempt(children[0]), pool).state == "succeeded"
    [pin] = told(service, children[0], "model_pinned")
    assert (pin["reference"], pin["model"]) == (f"run:{parent}/last", f"run:{parent}/step-1")
    assert weights(service, children[0])[0] == weights(service, parent)[1]


def test_no_evaluation_of_an_interrupted_attempt_or_a_final_run_stays_open(service, pool) -> None:
    run_id = service.post()
    context = service.attempt(run_id, ScriptedControl(lambda question: "drain" if question > 1 else None))
    assert run_training(context, pool).state == "interrupted"
    service.lost(context)
    context = service.attempt(run_id)
    with service.db.fenced(context.fence) as session:
        assert not [row for row in evaluations.list_for_run(session, run_id) if row.status == "running"]
        evaluations.start(
            session, context.fence, step=3, purpose="look", model_ref="m", suite="s", mode="greedy", n_items=1
        )
        runs.transition(session, run_id, runs.RunState.FAILED, reason="test")
        assert not [row for row in evaluations.list_for_run(session, run_id) if row.status == "running"]
