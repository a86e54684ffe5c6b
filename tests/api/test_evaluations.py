"""Evaluations, their items and the difference of two."""

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import Builder, FinishedRun


def test_evaluations_are_listed_in_the_order_they_were_started(client: TestClient, finished: FinishedRun) -> None:
    rows = client.get(f"/runs/{finished.id}/evals").json()["data"]
    assert [row["purpose"] for row in rows] == ["base", "base_repeat", "look", "look"]
    assert rows[0]["accuracy"] == 0.8


def test_list_can_be_cut_to_a_purpose(client: TestClient, finished: FinishedRun) -> None:
    rows = client.get(f"/runs/{finished.id}/evals?purpose=look").json()["data"]
    assert [row["id"] for row in rows] == finished.look_evaluations


def test_items_carry_the_contracts_fields(client: TestClient, finished: FinishedRun) -> None:
    item = client.get(f"/evals/{finished.base}/items?limit=1").json()["data"][0]
    contract = {
        "item_id", "suite", "step", "sample", "prompt_sha256", "token_ids", "text", "extracted", "verdict", "reason",
        "finish_reason", "verifier_version", "verify_ms", "base_verdict", "flip",
    }  # fmt: skip
    assert contract <= item.keys()
    assert item["token_ids"] == [7, 0]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("flip=lost", ["item-3", "item-6"]),
        ("flip=gained", ["item-8", "item-9"]),
        ("verdict=wrong", ["item-3", "item-6"]),
        ("verdict=correct&flip=same", ["item-0", "item-1", "item-2", "item-4", "item-5", "item-7"]),
    ],
)
def test_items_are_filtered_by_verdict_and_by_flip_against_base(
    client: TestClient, finished: FinishedRun, query: str, names: list[str]
) -> None:
    rows = client.get(f"/evals/{finished.look_evaluations[1]}/items?{query}").json()["data"]
    assert [row["item_id"] for row in rows] == names


def test_items_page_by_cursor(client: TestClient, finished: FinishedRun) -> None:
    first = client.get(f"/evals/{finished.base}/items?limit=6").json()
    second = client.get(f"/evals/{finished.base}/items?limit=6&after={first['next']}").json()
    assert [row["item_id"] for row in first["data"] + second["data"]] == [f"item-{index}" for index in range(10)]
    assert (second["has_more"], second["next"]) == (False, None)


def test_items_can_be_compared_with_another_evaluation(client: TestClient, finished: FinishedRun) -> None:
    first, second = finished.look_evaluations
    rows = client.get(f"/evals/{second}/items?flip=lost&against={first}").json()["data"]
    assert [row["item_id"] for row in rows] == ["item-3"]  # 1111110110 -> 1110110111


def test_items_are_not_compared_with_an_evaluation_of_another_suite(client: TestClient, build: Builder) -> None:
    fence = build.running()
    here, other = build.evaluation(fence, 0, "base", "11"), build.evaluation(fence, 0, "base", "10", suite="gsm8k")
    answer = client.get(f"/evals/{here}/items?against={other}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "not_comparable", "against")


@pytest.mark.parametrize(
    "path", ["{e}/items", "{e}/export?format=jsonl", "{e}/diff/{o}", "{o}/diff/{e}", "{o}/items?against={e}"]
)
def test_records_that_went_with_their_run_are_not_shown_as_none(
    client: TestClient, build: Builder, finished: FinishedRun, path: str
) -> None:
    other = build.evaluation(build.running(), 0, "base", "1111110110")
    assert client.delete(f"/runs/{finished.id}").status_code == 204
    answer = client.get("/evals/" + path.format(e=finished.base, o=other))
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "deleted")
    assert finished.id in answer.json()["error"]["message"]
    assert client.get(f"/evals/{finished.base}").json()["accuracy"] == 0.8
    assert client.post(f"/evals/{finished.base}/regrade").json()["error"]["param"] == "regrade"


@pytest.mark.parametrize(
    ("query", "status"),
    [("flip=sideways", 422), ("after=x", 422), ("after=1", 422), ("against=zz", 422), ("against=ffffffffffff", 404)],
)
def test_unusable_item_query_is_refused(client: TestClient, finished: FinishedRun, query: str, status: int) -> None:
    assert client.get(f"/evals/{finished.base}/items?{query}").status_code == status


def test_diff_counts_pairs_with_an_exact_test(client: TestClient, finished: FinishedRun) -> None:
    body = client.get(f"/evals/{finished.base}/diff/{finished.look_evaluations[1]}").json()
    assert (body["n"], body["lost"], body["gained"], body["delta"]) == (10, 2, 2, 0.0)
    assert body["p_value"] == 1.0  # two against two
    assert body["lost_items"] == ["item-3", "item-6"]
    assert body["gained_items"] == ["item-8", "item-9"]


def test_one_sided_loss_has_the_exact_two_sided_p(client: TestClient, build: Builder) -> None:
    fence = build.running()
    before = build.evaluation(fence, 0, "base", "11111111")
    after = build.evaluation(fence, 4, "look", "00000111")
    body = client.get(f"/evals/{before}/diff/{after}").json()
    assert body["p_value"] == 2 * 0.5**5  # 5 lost, 0 gained: 2 P(Bin(5, 1/2) = 0)
    assert body["delta"] == -0.625


def test_items_that_could_not_be_judged_are_left_out_of_a_diff(client: TestClient, build: Builder) -> None:
    fence = build.running()
    before = build.evaluation(fence, 0, "base", "1111")
    after = build.evaluation(fence, 4, "look", "11x0")
    body = client.get(f"/evals/{before}/diff/{after}").json()
    assert (body["n"], body["only_a"], body["lost"]) == (3, 1, 1)


def test_evaluations_of_different_suites_cannot_be_compared(client: TestClient, build: Builder) -> None:
    fence = build.running()
    before = build.evaluation(fence, 0, "base", "11")
    other = build.evaluation(fence, 4, "look", "11", suite="math500")
    answer = client.get(f"/evals/{before}/diff/{other}")
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "not_comparable"


def test_unknown_evaluation_is_not_found(client: TestClient) -> None:
    assert client.get("/evals/ffffffffffff/items").status_code == 404
    assert client.get("/evals/ffffffffffff/diff/ffffffffffff").status_code == 404
