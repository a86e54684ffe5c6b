"""The damage-stop status and its ETag, and the list of looks."""

from starlette.testclient import TestClient

from core.store import metrics, queue
from tests.api.conftest import Builder, FinishedRun


def test_status_before_any_look_says_not_started(client: TestClient, build: Builder) -> None:
    run = build.queued()
    body = client.get(f"/runs/{run['id']}/damage-stop").json()
    assert body["state"] == "not_started"
    assert body["rule"]["rule"] == "eprocess"
    assert body["prespecified_at"].endswith("Z")
    assert body["next_look_at_step"] == 4


def test_next_look_of_a_fork_comes_after_the_step_it_begins_at(client: TestClient, finished: FinishedRun) -> None:
    child = client.post(f"/runs/{finished.id}/fork", json={"from_step": 8}).json()
    body = client.get(f"/runs/{child['id']}/damage-stop").json()
    assert body["next_look_at_step"] == 12
    assert body["rule"]["looks"] == 1


def test_status_counts_the_last_looks_lost_and_gained_items(client: TestClient, finished: FinishedRun) -> None:
    body = client.get(f"/runs/{finished.id}/damage-stop").json()
    # 1111111100 against 1110110111: items 3 and 6 were lost, 8 and 9 gained.
    assert (body["paired"]["lost"], body["paired"]["gained"]) == (2, 2)
    assert body["paired"]["lost_items"] == ["item-3", "item-6"]
    assert body["looks"] == 2
    assert body["current"]["step"] == 8


def test_noise_floor_is_the_base_models_own_flip_rate(client: TestClient, finished: FinishedRun) -> None:
    base = client.get(f"/runs/{finished.id}/damage-stop").json()["base"]
    assert base["accuracy"] == 0.8
    assert base["noise_floor"] == 0.1  # one of ten items differs between the two base runs


def test_same_etag_until_the_next_look(client: TestClient, build: Builder) -> None:
    fence = build.running()
    path = f"/runs/{fence.run_id}/damage-stop"
    before = client.get(path)
    build.points(fence, "reward", [0.5, 0.5])
    unchanged = client.get(path, headers={"If-None-Match": before.headers["ETag"]})
    assert unchanged.status_code == 304
    assert unchanged.content == b""
    look = build.evaluation(fence, 4, "look", "10")
    build.look(fence, 4, 1, look, "11", "10")
    after = client.get(path, headers={"If-None-Match": before.headers["ETag"]})
    assert after.status_code == 200
    assert after.headers["ETag"] != before.headers["ETag"]


def test_status_follows_base_runs_looks_and_a_resume_that_goes_back_behind_them(
    client: TestClient, build: Builder
) -> None:
    fence = build.running()
    path = f"/runs/{fence.run_id}/damage-stop"

    def shown() -> tuple[int, float | None, int | None]:
        body = client.get(path).json()
        current = body["current"]
        return body["looks"], (body["base"] or {}).get("accuracy"), None if current is None else current["step"]

    assert shown() == (0, None, None)
    build.evaluation(fence, 0, "base", "1100")
    assert shown() == (0, 0.5, None)
    build.look(fence, 4, 1, build.evaluation(fence, 4, "look", "1110"), "1100", "1110")
    build.look(fence, 8, 2, build.evaluation(fence, 8, "look", "1111"), "1100", "1111")
    assert shown() == (2, 0.5, 8)
    with build.db.write() as session:
        queue.interrupt(session, fence, reason="lost")
    again = build.claimed(fence.run_id)
    with build.db.fenced(again) as session:
        metrics.supersede_after(session, again, 4)
    assert shown() == (1, 0.5, 4)
    build.look(again, 8, 2, build.evaluation(again, 8, "look", "1000"), "1100", "1000")
    assert shown() == (2, 0.5, 8)
    assert client.get(path).json()["current"]["accuracy"] == 0.25


def test_any_version_matches_a_star(client: TestClient, build: Builder) -> None:
    path = f"/runs/{build.queued()['id']}/damage-stop"
    assert client.get(path, headers={"If-None-Match": "*"}).status_code == 304


def test_status_of_a_deleted_run_is_gone(client: TestClient, build: Builder) -> None:
    run = build.queued()["id"]
    assert client.get(f"/runs/{run}/damage-stop").status_code == 200
    client.post(f"/runs/{run}/cancel")
    assert client.delete(f"/runs/{run}").status_code < 300
    assert client.get(f"/runs/{run}/damage-stop").status_code == 404


def test_run_without_a_damage_stop_says_so(client: TestClient, build: Builder) -> None:
    run = build.queued(damage_stop=None)
    body = client.get(f"/runs/{run['id']}/damage-stop").json()
    assert body["rule"] is None
    assert "no damage stop" in body["statement"]


def test_eval_run_has_a_status_too(client: TestClient) -> None:
    body = {"kind": "eval", "model": "smollm2-135m", "suites": ["gsm8k"], "device": {"kind": "cpu"}}
    run = client.post("/runs", json=body).json()
    assert client.get(f"/runs/{run['id']}/damage-stop").json()["state"] == "not_started"


def test_looks_are_listed_by_step_in_the_contracts_fields(client: TestClient, finished: FinishedRun) -> None:
    body = client.get(f"/runs/{finished.id}/looks").json()
    assert [look["step"] for look in body["data"]] == [4, 8]
    first = body["data"][0]
    contract = {
        "id", "run_id", "step", "checkpoint_sha256", "suite", "reference", "n", "accuracy", "ci", "lost", "gained",
        "d_histogram", "statistic", "decided", "created_at",
    }  # fmt: skip
    assert contract <= first.keys()
    assert first["created_at"].endswith("Z")


def test_looks_page_by_cursor(client: TestClient, finished: FinishedRun) -> None:
    first = client.get(f"/runs/{finished.id}/looks?limit=1").json()
    assert first["has_more"] is True
    second = client.get(f"/runs/{finished.id}/looks?limit=1&after={first['next']}").json()
    assert [look["step"] for look in second["data"]] == [8]
    assert second["next"] is None
