"""Later gradings over HTTP: asked for, shown beside the original, compared, exported; and files of records."""

import io
import json

import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from core.store import evaluations, regrades
from core.store.database import Fence
from tests.api.conftest import Builder, FinishedRun


def regraded(build: Builder, fence: Fence, evaluation_id: str, right: str, version: str) -> str:
    """Store a finished later grading; ``right`` has one character per record."""
    with build.db.fenced(fence) as session:
        made = regrades.start(
            session, fence, evaluation_id=evaluation_id, verifier="reasoning_gym", verifier_version=version
        )
        records = evaluations.records_after(session, evaluation_id, None, 1000)
        rows = [
            {"record_id": record.id, "verdict": "correct" if char == "1" else "wrong", "reason": "again", "extracted": "7",
             "verify_ms": 1.0, "details": None}
            for record, char in zip(records, right, strict=True)
        ]  # fmt: skip
        regrades.add(session, fence, made, rows)
        share = right.count("1") / len(right)
        regrades.finish(
            session, fence, made, records=len(right), changed=1, accuracy=share, correct=float(right.count("1"))
        )
    return made


def test_a_regrade_is_a_run_whose_recipe_names_the_evaluation(client: TestClient, finished: FinishedRun) -> None:
    answer = client.post(f"/evals/{finished.base}/regrade")
    assert answer.status_code == 201, answer.text
    run = answer.json()
    assert answer.headers["Location"] == f"/runs/{run['id']}"
    assert (run["kind"], run["recipe"]["regrade"]) == ("eval", finished.base)
    assert run["recipe"]["device"]["kind"] == "cpu"


def test_a_repeat_with_the_same_key_makes_no_second_run(client: TestClient, finished: FinishedRun) -> None:
    first, again = (
        client.post(f"/evals/{finished.base}/regrade", headers={"Idempotency-Key": "k"}).json() for _ in range(2)
    )
    assert first["id"] == again["id"]


def test_what_cannot_be_graded_again_is_refused(client: TestClient, build: Builder) -> None:
    assert client.post("/evals/ffffffffffff/regrade").status_code == 404
    fence = build.running()
    strange = build.evaluation(fence, 4, "look", "11", suite="validation")
    error = client.post(f"/evals/{strange}/regrade").json()["error"]
    assert "no suite of its run's recipe" in error["message"]
    with build.db.fenced(fence) as session:
        unfinished = evaluations.start(
            session, fence, step=4, purpose="look", model_ref="m", suite="holdout", mode="greedy", n_items=1
        )
    assert "not finished" in client.post(f"/evals/{unfinished}/regrade").json()["error"]["message"]
    assert client.get(f"/evals/{unfinished}/export?format=jsonl").status_code == 409


def test_later_verdicts_are_shown_beside_the_original_ones(client: TestClient, build: Builder) -> None:
    fence = build.running()
    made = build.evaluation(fence, 0, "base", "1110")
    later = regraded(build, fence, made, "1100", "2")
    shown = client.get(f"/evals/{made}").json()
    assert (shown["accuracy"], shown["verifier_version"]) == (0.75, "1")
    assert [(one["id"], one["verifier_version"], one["accuracy"]) for one in shown["regrades"]] == [(later, "2", 0.5)]
    third = client.get(f"/evals/{made}/items").json()["data"][2]
    assert third["verdict"] == "correct"
    assert [(one["verifier_version"], one["verdict"]) for one in third["regrades"]] == [("2", "wrong")]
    assert client.get(f"/runs/{fence.run_id}/evals").json()["data"][0]["regrades"][0]["id"] == later


def test_the_answers_that_a_later_grading_judges_otherwise_can_be_listed(client: TestClient, build: Builder) -> None:
    fence = build.running()
    made = build.evaluation(fence, 0, "base", "1110")
    later = regraded(build, fence, made, "1101", "2")
    same = regraded(build, fence, made, "1110", "3")
    first = client.get(f"/evals/{made}/items?changed_by={later}&limit=1").json()
    rest = client.get(f"/evals/{made}/items?changed_by={later}&limit=1&after={first['next']}").json()
    assert [one["item_id"] for one in first["data"] + rest["data"]] == ["item-2", "item-3"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert client.get(f"/evals/{made}/items?changed_by={same}").json()["data"] == []
    assert client.get(f"/evals/{made}/items?changed_by=ffffffffffff").status_code == 404
    elsewhere = build.evaluation(build.running(), 0, "base", "1")
    foreign = client.get(f"/evals/{elsewhere}/items?changed_by={later}")
    assert (foreign.status_code, foreign.json()["error"]["param"]) == (422, "changed_by")


def test_a_comparison_chooses_whose_verdicts_count(client: TestClient, build: Builder) -> None:
    fence = build.running()
    before = build.evaluation(fence, 0, "base", "1110")
    after = build.evaluation(fence, 4, "look", "1111", verifier_version="2")
    refused = client.get(f"/evals/{before}/diff/{after}").json()["error"]
    assert refused["code"] == "not_comparable"
    assert "verdicts=latest" in refused["hint"]
    later = regraded(build, fence, before, "1000", "2")
    for verdicts in ("latest", "2"):
        found = client.get(f"/evals/{before}/diff/{after}?verdicts={verdicts}").json()
        assert (found["gained"], found["a_regrade"], found["b_regrade"]) == (3, later, None)
        assert (found["verifier_version"], found["a_accuracy"]) == ("2", 0.25)
    assert client.get(f"/evals/{before}/diff/{after}?verdicts=7").json()["error"]["code"] == "not_graded"


def test_the_noise_floor_is_that_of_two_base_runs(client: TestClient, build: Builder) -> None:
    fence = build.running()
    first = build.evaluation(fence, 0, "base", "1111")
    after = build.evaluation(fence, 4, "look", "1100")
    assert client.get(f"/evals/{first}/diff/{after}").json()["noise_floor"] is None
    second = build.evaluation(fence, 0, "base_repeat", "1101")
    floor = client.get(f"/evals/{first}/diff/{after}").json()["noise_floor"]
    assert floor == {
        "a": first, "b": second, "n": 4, "lost": 1, "gained": 0, "delta": -0.25, "flipped_share": 0.25,
    }  # fmt: skip
    named = client.get(f"/evals/{first}/diff/{after}?noise={second},{first}").json()["noise_floor"]
    assert (named["lost"], named["gained"]) == (0, 1)
    other = build.evaluation(fence, 4, "look", "11", suite="math500")
    assert client.get(f"/evals/{first}/diff/{after}?noise={first},{other}").json()["error"]["param"] == "noise"


@pytest.mark.parametrize("form", ["parquet", "jsonl", "lm_eval"])
def test_records_are_exported_with_later_verdicts(client: TestClient, build: Builder, form: str) -> None:
    fence = build.running()
    made = build.evaluation(fence, 0, "base", "1110")
    regraded(build, fence, made, "1100", "2")
    answer = client.get(f"/evals/{made}/export?format={form}")
    assert answer.status_code == 200
    assert "attachment" in answer.headers["content-disposition"]
    if form == "lm_eval":
        assert [json.loads(line)["acc"] for line in answer.text.splitlines()] == [1.0, 1.0, 1.0, 0.0]
        return
    rows = (
        pq.read_table(io.BytesIO(answer.content)).to_pylist()
        if form == "parquet"
        else [json.loads(line) for line in answer.text.splitlines()]
    )
    third = rows[2]["regrades"]
    assert [one["verdict"] for one in (json.loads(third) if form == "parquet" else third)] == ["wrong"]


def test_rollouts_are_exported_whole(client: TestClient, build: Builder) -> None:
    fence = build.running()
    for step in (1, 2, 3):
        build.rollouts(fence, step, [1.0, 0.0, 1.0, 1.0])
    table = pq.read_table(io.BytesIO(client.get(f"/runs/{fence.run_id}/rollouts/export?format=parquet").content))
    assert table.num_rows == 12
    assert table.column("step").to_pylist() == [1] * 4 + [2] * 4 + [3] * 4
    lines = client.get(f"/runs/{fence.run_id}/rollouts/export?format=jsonl&step=2").text.splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2] * 4
    assert client.get(f"/runs/{fence.run_id}/rollouts/export?format=csv").status_code == 422
