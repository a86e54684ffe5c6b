"""Stored answers graded again: new verdicts beside the old ones, from the items as they were asked."""

from pathlib import Path
from typing import Any

import pytest

from core.evals import regrade
from core.evals.job import run_evaluation
from core.jobs import UserError
from core.store import evaluations, regrades
from core.store.models import Evaluation, ItemRecord
from core.tasks.pool import VerifierPool
from tests.core.evals.test_job import SUITE, recipe
from tests.core.train.service import ScriptedControl, Service


@pytest.fixture(scope="module")
def pool() -> Any:
    with VerifierPool(workers=1) as shared:
        yield shared


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> tuple[Service, str]:
    """A sampled evaluation of six items, three answers each, whose first verdict was stored as right although it is not."""
    service = Service(tmp_path_factory.mktemp("regraded"))
    run_id = service.post_recipe(recipe(suites=[{**SUITE, "n": 3}]))
    context = service.attempt(run_id)
    service.finish(context, run_evaluation(context, pool))
    with service.db.write() as session:
        (row,) = evaluations.list_for_run(session, run_id)
        record = session.get(ItemRecord, evaluations.records_after(session, row.id, None, 1)[0].id)
        assert record is not None
        assert record.verdict != "correct"
        record.verdict = "correct"
    return service, row.id


def graded_again(service: Service, evaluation_id: str, pool: VerifierPool, control: Any = None) -> tuple[str, Any]:
    wanted = recipe(suites=[{"suite": SUITE["suite"]}], regrade=evaluation_id)
    run_id = service.post_recipe(wanted)
    context = service.attempt(run_id, control)
    outcome = run_evaluation(context, pool)
    if outcome.state == "succeeded":
        service.finish(context, outcome)
    return run_id, outcome


def rows_of(service: Service, evaluation_id: str) -> tuple[Evaluation, list[ItemRecord]]:
    with service.db.read() as session:
        return evaluations.get(session, evaluation_id), evaluations.records_after(session, evaluation_id, None, 100)


def test_new_verdicts_stand_beside_the_old_ones(
    asked: tuple[Service, str], pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, evaluation_id = asked
    monkeypatch.setattr(regrade, "version_of", lambda verifier: "a newer version")
    monkeypatch.setattr(regrade, "PAGE", 5)
    before, records = rows_of(service, evaluation_id)
    was = [(record.verdict, record.reason, record.verifier_version) for record in records]
    _run, outcome = graded_again(service, evaluation_id, pool)
    assert (outcome.state, outcome.reason) == ("succeeded", "18 answers graded again, 1 verdicts differ")
    after, records = rows_of(service, evaluation_id)
    assert [(record.verdict, record.reason, record.verifier_version) for record in records] == was
    assert (after.accuracy, after.verifier_version) == (before.accuracy, before.verifier_version)
    with service.db.read() as session:
        later = regrades.list_for(session, evaluation_id)[-1]
        verdicts = [verdict for _item, _cluster, verdict in regrades.verdicts(session, later.id)]
        beside = regrades.of_records(session, [records[0].id])[records[0].id]
    assert (later.verifier_version, later.records, later.changed) == ("a newer version", 18, 1)
    assert verdicts[1:] == [verdict for verdict, _, _ in was[1:]]
    assert verdicts[0] != "correct"
    assert beside[-1][1].verdict == verdicts[0]
    assert later.measures is not None
    assert later.measures["records"] == 18


def test_an_interrupted_grading_leaves_nothing_and_begins_anew(
    asked: tuple[Service, str], pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, evaluation_id = asked
    monkeypatch.setattr(regrade, "PAGE", 5)
    with service.db.read() as session:
        before = len(regrades.list_for(session, evaluation_id))
    control = ScriptedControl(lambda question: "drain" if question == 3 else None)
    run_id, outcome = graded_again(service, evaluation_id, pool, control)
    assert outcome.state == "interrupted"
    with service.db.read() as session:
        assert len(regrades.list_for(session, evaluation_id)) == before
        assert regrades.done_by(session, run_id) == set()


def test_data_that_changed_since_is_refused(
    asked: tuple[Service, str], pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, evaluation_id = asked
    row, _ = rows_of(service, evaluation_id)
    context = service.attempt(service.post())
    with pytest.raises(UserError, match="put the data back") as caught:
        regrade.items_of(context, _with(row, dataset_hash="0" * 64))
    assert caught.value.code == "data_changed"
    assert len(regrade.items_of(context, row)) == 6
    service.lost(context)


def _with(row: Evaluation, **changes: Any) -> Any:
    from types import SimpleNamespace

    plain = {column.name: getattr(row, column.name) for column in Evaluation.__table__.columns}
    return SimpleNamespace(**plain | changes)


def test_the_prefill_that_was_asked_with_is_judged_again(tmp_path: Path, pool: VerifierPool) -> None:
    service = Service(tmp_path)
    run_id = service.post_recipe(recipe(suites=[SUITE], prompt={"prefill": "<answer>"}))
    context = service.attempt(run_id)
    service.finish(context, run_evaluation(context, pool))
    with service.db.read() as session:
        (row,) = evaluations.list_for_run(session, run_id)
        records = evaluations.records_after(session, row.id, None, 10)
    assert row.params["prefill"] == "<answer>"
    items = {item.id: item for item in regrade.items_of(context, row)}
    for record in records:
        record.text = f"{items[record.item_id].gold}</answer>"
    verdicts = regrade._graded(row, items, records, pool)
    assert [str(one.verdict) for one in verdicts] == ["correct"] * 6
