"""Bodies above the limit are refused before anything parses them, also without a declared length."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from api.app import create_app
from api.limits import BodyLimit
from core.settings import Settings
from tests.api.conftest import BASE_URL, LOCAL

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def small(settings: Settings) -> Iterator[TestClient]:
    with TestClient(
        create_app(replace(settings, max_body_bytes=1000), sweep=False), base_url=BASE_URL, client=LOCAL
    ) as made:
        yield made


def test_declared_length_above_the_limit_is_refused(small: TestClient) -> None:
    answer = small.post("/runs", content=b"{" + b" " * 1000, headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"


def test_chunked_body_above_the_limit_is_refused(small: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 100

    answer = small.post("/runs", content=pieces(), headers=JSON)
    assert answer.status_code == 413


def test_body_at_the_limit_is_read(small: TestClient) -> None:
    answer = small.post("/runs", content=b"{}" + b" " * 998, headers=JSON)
    assert answer.status_code == 422


@pytest.mark.parametrize("length", ["-1", "abc", "9" * 40])
def test_malformed_length_counts_as_too_large(small: TestClient, length: str) -> None:
    answer = small.post("/runs", content=b"{}", headers=JSON | {"Content-Length": length})
    assert answer.status_code == 413


async def _reading(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass


def test_reading_stops_at_the_limit() -> None:
    import anyio

    delivered = 0

    async def receive() -> Message:
        nonlocal delivered
        delivered += 1
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": []}
    anyio.run(BodyLimit(_reading, max_bytes=95), scope, receive, send)
    assert delivered == 10
    assert sent[0]["status"] == 413
