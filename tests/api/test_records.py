"""Events, logs, analyses and prespecifications over HTTP."""

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import Builder, FinishedRun


def test_events_are_polled_with_the_last_sequence_number(client: TestClient, build: Builder) -> None:
    run = build.queued()
    first = client.get(f"/runs/{run['id']}/events").json()
    assert first["data"][0]["type"] == "run_created"
    client.post(f"/runs/{run['id']}/cancel")
    later = client.get(f"/runs/{run['id']}/events?after={first['next']}").json()
    assert [event["payload"]["to"] for event in later["data"]] == ["cancelled"]
    empty = client.get(f"/runs/{run['id']}/events?after={later['next']}").json()
    assert (empty["data"], empty["next"]) == ([], later["next"])


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "99999999999999999999"])
def test_malformed_event_cursor_is_refused(client: TestClient, build: Builder, after: str) -> None:
    assert client.get(f"/runs/{build.queued()['id']}/events?after={after}").status_code == 422


def test_log_tail_level_and_search(client: TestClient, finished: FinishedRun) -> None:
    def lines(query: str) -> list[str]:
        return [row["text"] for row in client.get(f"/runs/{finished.id}/logs?{query}").json()["data"]]

    assert lines("tail=2") == ["  line", "INFO end"]
    assert lines("level=ERROR") == ["ERROR broke", "Traceback", "  line"]
    assert lines("search=SLOW") == ["WARNING slow"]


def test_log_is_followed_by_cursor(client: TestClient, build: Builder) -> None:
    fence = build.running()
    build.log(fence.run_id, 1, "INFO one\nINFO half")
    first = client.get(f"/runs/{fence.run_id}/logs").json()
    build.log(fence.run_id, 1, "INFO one\nINFO half done\nINFO three\n")
    later = client.get(f"/runs/{fence.run_id}/logs?after={first['next']}").json()
    assert [row["text"] for row in later["data"]] == ["INFO half done", "INFO three"]


def test_run_without_a_log_has_an_empty_one(client: TestClient, build: Builder) -> None:
    assert client.get(f"/runs/{build.queued()['id']}/logs").json()["data"] == []


@pytest.mark.parametrize(
    "query", ["after=x", "after=1:-1", "after=٣:1", "tail=0", "level=LOUD", "attempt=0", "search=%00"]
)
def test_unusable_log_query_is_refused(client: TestClient, build: Builder, query: str) -> None:
    answer = client.get(f"/runs/{build.queued()['id']}/logs?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


def test_link_in_the_log_folder_is_passed_over(client: TestClient, build: Builder) -> None:
    run = build.queued()
    build.log(run["id"], 1, "INFO mine\n")
    secret = build.settings.home / "secret.txt"
    secret.write_text("INFO secret\n")
    build.settings.log_file(run["id"], 2).symlink_to(secret)
    assert [row["text"] for row in client.get(f"/runs/{run['id']}/logs").json()["data"]] == ["INFO mine"]


def test_analysis_with_its_result_and_figure(client: TestClient, finished: FinishedRun) -> None:
    listed = client.get(f"/runs/{finished.id}/analyses").json()["data"]
    assert [row["id"] for row in listed] == [finished.analysis]
    assert client.get(f"/analyses/{finished.analysis}").json()["result"] == {"median": 0.9}
    figure = client.get(f"/analyses/{finished.analysis}/figures/r2.json")
    assert figure.json() == {"data": []}
    assert "sandbox" in figure.headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["other.json", "..%2f..%2fdriftline.db", "r2.exe"])
def test_figure_that_is_not_listed_is_not_found(client: TestClient, finished: FinishedRun, name: str) -> None:
    assert client.get(f"/analyses/{finished.analysis}/figures/{name}").status_code == 404


def test_prespecifications_are_listed_and_shown(client: TestClient, finished: FinishedRun) -> None:
    listed = client.get("/prespecifications").json()["data"]
    assert [row["run_id"] for row in listed] == [finished.id]
    shown = client.get(f"/prespecifications/{listed[0]['id']}").json()
    assert shown["hash"] == listed[0]["hash"]
    assert shown["frozen_at"].endswith("Z")


def test_unknown_records_are_not_found(client: TestClient) -> None:
    for path in ("/analyses/ffffffffffff", "/prespecifications/ffffffffffff", "/runs/ffffffffffff/events"):
        assert client.get(path).status_code == 404
