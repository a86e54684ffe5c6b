"""Training samples as JSON and Parquet."""

import io

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import FinishedRun


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 6),
        ("step=1", 4),
        ("reward_min=1", 3),
        ("reward_max=0", 3),
        ("verdict=wrong", 3),
        ("tokens_min=4", 0),
        ("zero_variance=true", 0),
        ("text=ANSWER is 3", 1),
        ("text=%25", 0),
    ],
)
def test_filters(client: TestClient, finished: FinishedRun, query: str, count: int) -> None:
    assert len(client.get(f"/runs/{finished.id}/rollouts?{query}").json()["data"]) == count


def test_pages_are_in_order_of_step(client: TestClient, finished: FinishedRun) -> None:
    first = client.get(f"/runs/{finished.id}/rollouts?limit=5").json()
    second = client.get(f"/runs/{finished.id}/rollouts?limit=5&after={first['next']}").json()
    assert [row["step"] for row in first["data"] + second["data"]] == [1, 1, 1, 1, 2, 2]


def test_parquet_holds_the_same_rows_with_a_fixed_schema(client: TestClient, finished: FinishedRun) -> None:
    from pyarrow import parquet

    answer = client.get(f"/runs/{finished.id}/rollouts?format=parquet&limit=4")
    table = parquet.read_table(io.BytesIO(answer.content))
    assert answer.headers["Content-Type"] == "application/vnd.apache.parquet"
    assert table.num_rows == 4
    assert table.column("reward").to_pylist() == [1.0, 0.0, 1.0, 1.0]
    assert table.column("token_ids").to_pylist()[0] == [1, 2, 3]
    rest = client.get(f"/runs/{finished.id}/rollouts?format=parquet&after={answer.headers['Driftline-Next']}")
    assert parquet.read_table(io.BytesIO(rest.content)).schema == table.schema


@pytest.mark.parametrize(
    "query", ["reward_min=nan", "reward_min=inf", "step=-1", "after=1", "zero_variance=maybe", "format=csv"]
)
def test_unusable_query_is_refused(client: TestClient, finished: FinishedRun, query: str) -> None:
    answer = client.get(f"/runs/{finished.id}/rollouts?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == query.split("=", maxsplit=1)[0]
