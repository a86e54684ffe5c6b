"""No web page can use the service: Host, Origin and Content-Type."""

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.origin import host_name
from core.settings import Settings
from tests.api.conftest import BASE_URL, LOCAL, recipe


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8421",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "",
        "[::",
        "evil@127.0.0.1",
        "a:b@localhost:8421",
        "127.0.0.1/x",
        "localhost#x",
    ],
)
def test_foreign_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/runs", headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden_host"


@pytest.mark.parametrize("hosts", [("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost",) * 2])
def test_two_hosts_are_refused_whatever_they_name(client: TestClient, hosts: tuple[str, str]) -> None:
    answer = client.get("/runs", headers=[("Host", host) for host in hosts])
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8421", "127.0.0.1:1", "[::1]:8421"])
def test_loopback_host_is_accepted(client: TestClient, host: str) -> None:
    assert client.get("/runs", headers={"Host": host}).status_code == 200


def test_configured_host_is_accepted(settings: Settings) -> None:
    from dataclasses import replace

    app = create_app(replace(settings, host="gpu-box"), sweep=False)
    with TestClient(app, base_url=BASE_URL, client=LOCAL) as client:
        assert client.get("/runs", headers={"Host": "gpu-box:8421"}).status_code == 200
        assert client.get("/runs", headers={"Host": "other"}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_write_started_by_another_origin_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/runs", json=recipe(), headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden_origin"


def test_write_from_the_services_own_page_is_accepted(client: TestClient) -> None:
    headers = {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/runs", json=recipe(), headers=headers).status_code == 201


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_body_that_is_not_declared_as_json_is_refused(client: TestClient, kind: str) -> None:
    answer = client.post("/runs", content=b"{}", headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert answer.json()["error"]["param"] == "Content-Type"


def test_body_without_a_content_type_is_refused(client: TestClient) -> None:
    assert client.post("/runs", content=b"{}").status_code == 415


def test_json_with_a_charset_is_accepted(client: TestClient) -> None:
    answer = client.post("/runs", content=b"{}", headers={"Content-Type": "application/json; charset=utf-8"})
    assert answer.status_code == 422


def test_every_answer_forbids_sniffing_and_framing(client: TestClient) -> None:
    for path in ("/healthz", "/", "/nowhere"):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_no_answer_grants_another_origin_anything(client: TestClient) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = client.options("/runs", headers=asked)
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    ("host", "name"), [("[::1]:80", "::1"), ("Example.COM:1", "example.com"), ("[::", ""), ("", "")]
)
def test_host_name_reads_only_well_formed_hosts(host: str, name: str) -> None:
    assert host_name(host) == name
