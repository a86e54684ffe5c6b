"""Posting, listing, showing and changing runs."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.store import checkpoints, looks, queue
from core.store.database import Database
from core.store.states import RunState
from tests.api.conftest import Builder, FinishedRun, recipe


def test_posted_recipe_becomes_a_run_with_location_hash_and_resolved_recipe(client: TestClient) -> None:
    answer = client.post("/runs", json=recipe())
    body = answer.json()
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/runs/{body['id']}"
    assert body["state"] == "queued"
    assert len(body["recipe_hash"]) == 64
    assert body["recipe"]["temperature"] == 1.0
    assert "temperature" not in body["submitted"]


def test_prespecification_is_frozen_with_the_run(client: TestClient) -> None:
    run = client.post("/runs", json=recipe()).json()
    frozen = client.get(f"/prespecifications/{run['prespecification_id']}").json()
    assert frozen["run_id"] == run["id"]
    assert frozen["automatic"] is True
    assert frozen["document"]["analysis"]["rule"]["looks"] == 3


def test_doorbell_is_written_with_the_run(client: TestClient, db: Database) -> None:
    run = client.post("/runs", json=recipe()).json()
    with db.read() as session:
        assert [row.run_id for row in queue.outbox_pending(session)] == [run["id"]]


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"kind": "train", "kind": "eval"}', "kind"),
        (b'{"kind": "analysis", "run": "run:abcd", "compute": ["weight_linearity"], "lr": 1e-4}', "lr"),
        (b'{"kind": "dance"}', "kind"),
        (b'{"kind": "train", "learning_rate": NaN}', "learning_rate"),
        (b"[" * 50000, ""),
        (b"\xff\xfe", ""),
        (b"", ""),
        (b'{"kind": "train", "seed": 1' + b"0" * 5000 + b"}", "seed"),
        (b'{"kind": "train", "name": "\\ud800"}', "name"),
        (b'{"kind": "train", "name": "a\\u0000b"}', "name"),
    ],
)
def test_bad_recipe_is_refused_with_the_field_named(client: TestClient, raw: bytes, param: str) -> None:
    answer = client.post("/runs", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "param", "hint"}
    assert error["param"] == param
    assert error["hint"]


def test_refused_recipe_stores_nothing(client: TestClient) -> None:
    client.post("/runs", json=recipe(lr=1.0))
    assert client.get("/runs").json()["data"] == []


def test_feature_this_release_lacks_is_refused_by_name(client: TestClient) -> None:
    answer = client.post("/runs", json=recipe(linearity="live", lora={"r": 8}))
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "linearity"


def test_recipe_that_cannot_fit_its_device_is_refused_with_the_smallest_change(client: TestClient) -> None:
    answer = client.post("/runs", json=recipe(device={"kind": "cpu", "memory_gib": 0.5}))
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert error["param"] == "device.memory_gib"
    assert "GiB" in error["message"]


def test_dry_run_plans_and_stores_nothing(client: TestClient) -> None:
    answer = client.post("/runs?dry_run=true", json=recipe())
    body = answer.json()
    assert answer.status_code == 200
    assert body["valid"] is True
    assert body["fits"] is True
    assert body["cards"][0]["worker_id"] is None
    assert body["cards"][0]["plan"]["peak_gib"] > 0
    assert body["cards"][0]["disk_fits"] is (body["cards"][0]["plan"]["disk_gib"] <= body["cards"][0]["disk_free_gib"])
    assert body["cost"]["samples"] == 12 * 4 * 4
    assert body["prespecification"]["analysis"]["rule"]["m"] == 16
    assert client.get("/runs").json()["data"] == []


def test_dry_run_reports_what_does_not_fit_and_is_no_error(client: TestClient, build: Builder) -> None:
    build.running()  # registers a CPU worker
    answer = client.post("/runs?dry_run=true", json=recipe(device={"kind": "cuda"}, engine="transformers"))
    body = answer.json()
    assert answer.status_code == 200
    assert body["fits"] is False
    assert body["cards"][0]["smallest_change"] == "device.kind cpu"


def test_dry_run_reports_missing_features(client: TestClient) -> None:
    body = client.post("/runs?dry_run=true", json=recipe(model="Qwen/Qwen3-30B-A3B")).json()
    assert [problem["param"] for problem in body["features_missing"]] == ["model"]


def test_reference_to_an_unknown_run_names_the_field(client: TestClient) -> None:
    body = {"kind": "analysis", "run": "run:abcd", "compute": ["weight_linearity"]}
    answer = client.post("/runs", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "run"


def test_prefix_of_a_run_is_stored_as_its_full_id(client: TestClient, finished: FinishedRun) -> None:
    body = {"kind": "analysis", "run": f"run:{finished.id[:6]}", "compute": ["weight_linearity"]}
    made = client.post("/runs", json=body).json()
    assert made["recipe"]["run"] == f"run:{finished.id}"
    assert made["submitted"]["run"] == f"run:{finished.id[:6]}"


def test_checkpoint_reference_needs_that_checkpoint(client: TestClient, finished: FinishedRun) -> None:
    body = {"kind": "eval", "model": f"run:{finished.id}/step-5", "suites": ["gsm8k"], "device": {"kind": "cpu"}}
    answer = client.post("/runs", json=body)
    assert answer.status_code == 422
    assert "no checkpoint at step 5" in answer.json()["error"]["message"]


# ---- reading


def test_pages_do_not_shift_when_runs_are_added(client: TestClient, build: Builder) -> None:
    ids = [build.queued(seed=seed)["id"] for seed in range(4)]
    first = client.get("/runs?limit=2").json()
    build.queued(seed=9)
    second = client.get(f"/runs?limit=2&after={first['next']}").json()
    assert [run["id"] for run in first["data"] + second["data"]] == ids[::-1]
    assert second["has_more"] is False


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("kind=train", 2),
        ("kind=eval", 0),
        ("state=queued", 1),
        ("state=succeeded", 1),
        ("tag=demo", 2),
        ("tag=other", 0),
        ("model=smollm2-135m", 2),
        ("created_from=2020-01-01T00:00:00Z", 2),
        ("created_to=2020-01-01T00:00:00Z", 0),
    ],
)
@pytest.mark.usefixtures("finished")
def test_filters_of_the_list(client: TestClient, build: Builder, query: str, count: int) -> None:
    build.queued()
    assert len(client.get(f"/runs?{query}").json()["data"]) == count


@pytest.mark.parametrize(
    "query",
    [
        "limt=5",
        "limit=0",
        "limit=1001",
        "limit=99999999999999999999999",
        "after=abc",
        "after=99999999999999999999",
        "after=1:2",
        "state=dancing",
        "tag=%00",
        "limit=1&limit=2",
        "created_from=yesterday",
        "created_from=2020-01-01T00:00:00",
    ],
)
def test_unusable_query_is_refused_with_the_parameter_named(client: TestClient, query: str) -> None:
    answer = client.get(f"/runs?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


@pytest.mark.parametrize("name", ["zzz", "abcdef", "a" * 13, "%00", "..%2f..", "A" * 12, "9" * 40])
def test_unknown_and_odd_ids_are_client_errors(client: TestClient, name: str) -> None:
    assert client.get(f"/runs/{name}").status_code in {404, 422}


def test_unique_prefix_finds_the_run(client: TestClient, build: Builder) -> None:
    run = build.queued()
    assert client.get(f"/runs/{run['id'][:8]}").json()["id"] == run["id"]


def test_waiting_run_says_its_place_and_why(client: TestClient, build: Builder) -> None:
    build.queued()
    second = build.queued(seed=1)
    body = client.get(f"/runs/{second['id']}").json()
    assert body["queue"]["position"] == 2
    assert "1 run with higher priority" in body["queue"]["why"]
    assert body["liveness"]["state"] == "waiting"


def test_running_run_with_a_fresh_heartbeat_is_alive(client: TestClient, build: Builder) -> None:
    fence = build.running()
    body = client.get(f"/runs/{fence.run_id}").json()
    assert body["liveness"]["state"] == "alive"
    assert body["attempt"]["number"] == 1
    assert body["device"]["kind"] == "cpu"


def test_run_whose_lease_expired_is_lost_and_says_since_when(client: TestClient, build: Builder) -> None:
    run = build.queued()
    build.claimed(run["id"], ttl=-30.0)
    liveness = client.get(f"/runs/{run['id']}").json()["liveness"]
    assert liveness["state"] == "lost"
    assert "30 s ago" in liveness["reason"]


def test_eta_follows_the_recent_time_per_step(client: TestClient, build: Builder, db: Database) -> None:
    from core.store import runs

    fence = build.running()
    build.points(fence, "step_time", [1.0, 1.0, 1.0])
    with db.fenced(fence) as session:
        runs.progress(session, fence, phase="train", done=3, total=12, unit="step", step=3)
    eta = client.get(f"/runs/{fence.run_id}").json()["eta"]
    assert eta["seconds"] >= 0
    assert "median of the last 2 steps" in eta["basis"]


def test_finished_run_has_no_queue_and_no_eta(client: TestClient, finished: FinishedRun) -> None:
    body = client.get(f"/runs/{finished.id}").json()
    assert (body["queue"], body["eta"]) == (None, None)
    assert body["liveness"]["state"] == "ended"
    assert body["finished_at"].endswith("Z")


# ---- changing


def test_queued_run_is_cancelled_at_once(client: TestClient, build: Builder) -> None:
    run = build.queued()
    assert client.post(f"/runs/{run['id']}/cancel").json()["state"] == "cancelled"


def test_running_run_is_asked_to_cancel(client: TestClient, build: Builder) -> None:
    fence = build.running()
    assert client.post(f"/runs/{fence.run_id}/cancel").json()["state"] == "cancelling"


def test_paused_run_resumes_into_the_queue(client: TestClient, build: Builder, db: Database) -> None:
    fence = build.running()
    assert client.post(f"/runs/{fence.run_id}/pause").json()["state"] == "pausing"
    with db.fenced(fence) as session:
        queue.pause_done(session, fence)
    assert client.get(f"/runs/{fence.run_id}").json()["liveness"]["state"] == "paused"
    assert client.post(f"/runs/{fence.run_id}/resume").json()["state"] == "queued"


@pytest.mark.parametrize("action", ["cancel", "pause", "resume"])
def test_final_run_cannot_be_changed(client: TestClient, finished: FinishedRun, action: str) -> None:
    answer = client.post(f"/runs/{finished.id}/{action}")
    error = answer.json()["error"]
    assert answer.status_code == 409
    assert error["code"] == "illegal_transition"
    assert error["hint"]


def test_deleted_run_is_gone_with_its_files(client: TestClient, build: Builder, finished: FinishedRun) -> None:
    folder = build.settings.run_dir(finished.id)
    assert folder.is_dir()
    assert client.delete(f"/runs/{finished.id}").status_code == 204
    assert client.get(f"/runs/{finished.id}").status_code == 404
    assert not folder.exists()


def test_run_that_is_not_final_cannot_be_deleted(client: TestClient, build: Builder) -> None:
    assert client.delete(f"/runs/{build.queued()['id']}").status_code == 409


# ---- forks


def test_fork_begins_from_the_last_checkpoint_with_overrides_merged(client: TestClient, finished: FinishedRun) -> None:
    answer = client.post(f"/runs/{finished.id}/fork", json={"overrides": {"learning_rate": 5e-6, "looks": {"m": 8}}})
    child = answer.json()
    assert answer.status_code == 201
    assert child["recipe"]["model"] == f"run:{finished.id}/step-8"
    assert (child["parent_id"], child["parent_step"]) == (finished.id, 8)
    assert child["recipe"]["looks"]["every"] == 4
    assert child["recipe_diff"]["learning_rate"] == {"from": 1e-6, "to": 5e-6}
    assert child["recipe_diff"]["looks.m"] == {"from": 16, "to": 8}
    assert child["exploratory"] is False


def test_null_override_removes_a_field(client: TestClient, finished: FinishedRun) -> None:
    child = client.post(f"/runs/{finished.id}/fork", json={"overrides": {"damage_stop": None}}).json()
    assert child["recipe"]["damage_stop"] is None


def test_fork_from_scratch_keeps_the_parents_model(client: TestClient, finished: FinishedRun) -> None:
    child = client.post(f"/runs/{finished.id}/fork", json={"from_step": "scratch"}).json()
    assert child["recipe"]["model"] == "smollm2-135m"
    assert child["parent_step"] is None


def test_fork_of_a_damage_stopped_run_is_exploratory(client: TestClient, build: Builder) -> None:
    fence = build.running()
    build.checkpoint(fence, 4)
    build.finish(fence, RunState.DAMAGE_STOPPED)
    child = client.post(f"/runs/{fence.run_id}/fork", json={"from_step": 4}).json()
    assert child["exploratory"] is True
    grandchild_of_scratch = client.post(f"/runs/{fence.run_id}/fork", json={"from_step": "scratch"}).json()
    assert grandchild_of_scratch["exploratory"] is False


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"from_step": 5}, 409, "from_step"),
        ({"from_step": "middle"}, 422, "from_step"),
        ({"from_step": True}, 422, "from_step"),
        ({"form_step": 4}, 422, "form_step"),
        ({"overrides": []}, 422, "overrides"),
        ({"overrides": {"model": "smollm2-135m"}}, 422, "overrides.model"),
        ({"overrides": {"kind": "eval"}}, 422, "overrides.kind"),
        ({"overrides": {"lr": 1}}, 422, "overrides.lr"),
        ({"overrides": {"seed": 1}}, 422, "overrides.seed"),
        ({"overrides": {"data": {"holdout": 60}}}, 422, "overrides.data.holdout"),
        ({"overrides": {"data": {"options": {"size": 500}}}}, 422, "overrides.data.options"),
        ({"overrides": {"max_steps": 8}}, 422, "overrides.max_steps"),
    ],
)
def test_unusable_fork_names_the_field(
    client: TestClient, finished: FinishedRun, body: dict[str, Any], status: int, param: str
) -> None:
    answer = client.post(f"/runs/{finished.id}/fork", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


def test_fork_may_repeat_its_parents_data_and_a_fork_from_scratch_may_change_it(
    client: TestClient, finished: FinishedRun
) -> None:
    same = {"overrides": {"seed": 0, "data": {"holdout": 80}}}
    assert client.post(f"/runs/{finished.id}/fork", json=same).status_code == 201
    other = {"from_step": "scratch", "overrides": {"seed": 1, "data": {"holdout": 60}}}
    assert client.post(f"/runs/{finished.id}/fork", json=other).status_code == 201


def test_fork_that_would_begin_at_its_last_step_says_how_to_mend_it(client: TestClient, build: Builder) -> None:
    fence = build.running()
    build.checkpoint(fence, 12)
    build.finish(fence)
    error = client.post(f"/runs/{fence.run_id}/fork", json={}).json()["error"]
    assert error["param"] == "overrides.max_steps"
    assert "begins at step 12 and max_steps is 12" in error["message"]
    assert "above 12" in error["hint"]
    longer = client.post(f"/runs/{fence.run_id}/fork", json={"overrides": {"max_steps": 13}})
    assert longer.status_code == 201


def test_fork_from_weights_alone_is_refused(client: TestClient, build: Builder) -> None:
    fence = build.running()
    made = build.checkpoint(fence, 4)
    with build.db.write() as session:
        checkpoints.by_id(session, made).has_optimizer = False
    build.finish(fence)
    answer = client.post(f"/runs/{fence.run_id}/fork", json={"from_step": 4})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_optimizer_state")


@pytest.mark.parametrize(("which", "step"), [("last", 8), ("best", 4)])
def test_reference_to_a_final_run_is_stored_with_its_step(
    client: TestClient, finished: FinishedRun, which: str, step: int, build: Builder
) -> None:
    if which == "best":  # the builder's looks name no checkpoint
        with build.db.write() as session:
            by_step = {row.step: row.sha256 for row in checkpoints.list_(session, finished.id)}
            for row in looks.list_(session, finished.id):
                row.checkpoint_sha256 = by_step[row.step]
                row.accuracy = 1.0 - row.step / 100
    ref, pinned = f"run:{finished.id[:6]}/{which}", f"run:{finished.id}/step-{step}"
    body = {"kind": "eval", "model": ref, "suites": ["gsm8k"], "device": {"kind": "cpu"}}
    made = client.post("/runs", json=body).json()
    assert (made["recipe"]["model"], made["submitted"]["model"]) == (pinned, ref)
    compared = client.post("/runs", json=body | {"model": "smollm2-135m", "against": [ref]}).json()
    assert compared["recipe"]["against"] == [pinned]


def test_best_may_be_compared_with_last_where_both_are_one_checkpoint(
    client: TestClient, finished: FinishedRun, build: Builder
) -> None:
    with build.db.write() as session:
        newest = checkpoints.latest(session, finished.id)
        looks.last(session, finished.id).checkpoint_sha256 = newest.sha256
    body = {"kind": "eval", "model": f"run:{finished.id}/best", "suites": ["gsm8k"], "device": {"kind": "cpu"}}
    made = client.post("/runs", json=body | {"against": ["base", f"run:{finished.id}/last"]}).json()
    assert made["recipe"]["model"] == f"run:{finished.id}/step-8"
    assert made["recipe"]["against"] == ["base", f"run:{finished.id}/last"]


def test_reference_to_a_run_at_work_is_left_to_the_first_attempt(client: TestClient, build: Builder) -> None:
    fence = build.running()
    build.checkpoint(fence, 4)
    body = {"kind": "eval", "model": f"run:{fence.run_id}/last", "suites": ["gsm8k"], "device": {"kind": "cpu"}}
    assert client.post("/runs", json=body).json()["recipe"]["model"] == f"run:{fence.run_id}/last"


def test_parent_of_a_waiting_fork_cannot_be_deleted(client: TestClient, finished: FinishedRun) -> None:
    client.post(f"/runs/{finished.id}/fork", json={})
    answer = client.delete(f"/runs/{finished.id}")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "run_in_use"
