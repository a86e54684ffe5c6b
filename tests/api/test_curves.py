"""The curves endpoint."""

import csv
import io

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import FinishedRun


def test_points_are_step_value_time_and_a_lost_value_says_what_it_was(
    client: TestClient, finished: FinishedRun
) -> None:
    body = client.get(f"/runs/{finished.id}/curves?keys=reward").json()
    curve = body["curves"]["reward"]
    assert body["attempt"] == "current"
    assert [point[0] for point in curve["points"]] == list(range(1, 9))
    assert curve["points"][0][1] == 0.25
    assert curve["points"][0][2].endswith("Z")
    assert curve["points"][2][1] is None
    assert curve["points"][2][3] == "nan"
    assert (curve["total"], curve["shown"]) == (8, 8)
    assert curve["unit"] == "score"
    assert curve["help"]


def test_marks_name_looks_and_checkpoints(client: TestClient, finished: FinishedRun) -> None:
    marks = client.get(f"/runs/{finished.id}/curves").json()["marks"]
    assert {(mark["kind"], mark["step"]) for mark in marks} == {
        ("checkpoint", 4), ("look", 4), ("checkpoint", 8), ("look", 8),
    }  # fmt: skip


def test_all_keys_are_given_when_none_is_named(client: TestClient, finished: FinishedRun) -> None:
    assert set(client.get(f"/runs/{finished.id}/curves").json()["curves"]) == {"reward", "step_time"}


def test_thinned_curve_keeps_first_last_and_looks(client: TestClient, finished: FinishedRun) -> None:
    curve = client.get(f"/runs/{finished.id}/curves?keys=reward&max_points=2").json()["curves"]["reward"]
    steps = [point[0] for point in curve["points"]]
    assert {1, 4, 8} <= set(steps)
    assert curve["shown"] == len(steps) < curve["total"]


def test_range_is_inclusive(client: TestClient, finished: FinishedRun) -> None:
    curve = client.get(f"/runs/{finished.id}/curves?keys=reward&from_step=2&to_step=4").json()["curves"]["reward"]
    assert [point[0] for point in curve["points"]] == [2, 3, 4]


def test_unknown_key_gives_an_empty_curve(client: TestClient, finished: FinishedRun) -> None:
    curve = client.get(f"/runs/{finished.id}/curves?keys=nothing").json()["curves"]["nothing"]
    assert (curve["points"], curve["total"]) == ([], 0)


def test_csv_has_one_row_per_point(client: TestClient, finished: FinishedRun) -> None:
    answer = client.get(f"/runs/{finished.id}/curves?keys=reward&format=csv")
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert rows[0] == ["key", "step", "value", "time"]
    assert rows[3][:3] == ["reward", "3", "nan"]
    assert len(rows) == 9


@pytest.mark.parametrize(
    "query",
    [
        "keys=",
        "keys=,,",
        "from_step=-1",
        "to_step=99999999999999999999",
        "max_points=0",
        "format=xml",
        "attempt=0",
        "attempt=x",
        "key=a",
    ],
)
def test_unusable_query_is_refused(client: TestClient, finished: FinishedRun, query: str) -> None:
    answer = client.get(f"/runs/{finished.id}/curves?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


def test_one_attempts_points_can_be_asked_for(client: TestClient, finished: FinishedRun) -> None:
    body = client.get(f"/runs/{finished.id}/curves?keys=reward&attempt=1").json()
    assert body["attempt"] == 1
    assert body["curves"]["reward"]["total"] == 8


@pytest.mark.parametrize("path", ["curves", "logs"])
def test_an_attempt_that_the_run_never_had_is_not_found(client: TestClient, finished: FinishedRun, path: str) -> None:
    assert client.get(f"/runs/{finished.id}/{path}?attempt=1").status_code == 200
    answer = client.get(f"/runs/{finished.id}/{path}?attempt=99")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["param"], error["hint"]) == ("attempt", "it has 1")
    assert "has no attempt 99" in error["message"]
