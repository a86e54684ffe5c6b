"""The client's errors, retries and requests, on a transport that answers from a list, and on a real api."""

import json

import httpx
import pytest

from client.api import DriftlineClient
from client.cli import main
from client.errors import AuthRefused, ClientError, Conflict, NotFound, NotReachable, Refused, ServiceFailed
from tests.api.conftest import recipe


class Script:
    """Answers requests one after another; an exception in the list is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def scripted(*answers, **options):
    script = Script(*answers)
    return script, DriftlineClient("http://service.test", transport=httpx.MockTransport(script), **options)


def refusal(status, **changes):
    detail = {"code": "some_code", "message": "a sentence", "param": "a.field", "hint": "do this"} | changes
    return httpx.Response(status, json={"error": detail})


@pytest.mark.parametrize(
    ("status", "kind", "exit_status"),
    [
        (401, AuthRefused, 1),
        (403, AuthRefused, 1),
        (404, NotFound, 1),
        (409, Conflict, 1),
        (422, Refused, 5),
        (500, ServiceFailed, 1),
    ],
)
def test_a_refusal_carries_the_services_own_words(status, kind, exit_status):
    _, client = scripted(refusal(status))
    with pytest.raises(kind) as caught:
        client.run("abc")
    error = caught.value
    assert (error.status, error.code, error.message, error.param, error.hint) == (
        status, "some_code", "a sentence", "a.field", "do this",
    )  # fmt: skip
    assert error.exit_status == exit_status
    assert error.body() == {
        "error": {"code": "some_code", "message": "a sentence", "param": "a.field", "hint": "do this"}
    }


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(500, text="oops"), httpx.Response(502, json=["x"]), httpx.Response(500, json={"error": 3})],
)
def test_an_error_without_a_document_still_is_an_error(answer):
    _, client = scripted(answer, read_tries=1)
    with pytest.raises(ServiceFailed, match=r"50\d"):
        client.run("abc")


def test_reads_are_tried_again_when_nobody_answers_for_a_moment():
    script, client = scripted(
        httpx.ConnectError("x"), httpx.Response(503), httpx.ReadTimeout("x"), httpx.Response(200, json={"id": "abc"})
    )
    assert client.run("abc") == {"id": "abc"}
    assert len(script.requests) == 4


def test_reads_give_up_after_their_tries_with_what_came_last():
    script, client = scripted(httpx.ConnectError("x"), refusal(503), read_tries=2)
    with pytest.raises(ServiceFailed, match="a sentence"):
        client.run("abc")
    assert len(script.requests) == 2


def test_a_final_refusal_is_not_asked_again():
    script, client = scripted(refusal(404))
    with pytest.raises(NotFound):
        client.run("abc")
    assert len(script.requests) == 1


@pytest.mark.parametrize("failure", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), refusal(503)])
@pytest.mark.parametrize(
    "write", [lambda c: c.submit({}), lambda c: c.cancel("abc"), lambda c: c.pause("abc"), lambda c: c.resume("abc")]
)
def test_writes_are_sent_once(failure, write):
    script, client = scripted(failure)
    with pytest.raises(ClientError):
        write(client)
    assert len(script.requests) == 1


def test_a_submission_is_sent_byte_for_byte_with_its_key():
    script, client = scripted(httpx.Response(201, json={"id": "abc"}), token="secret")
    raw = b'{"kind": "train", "kind":\n "eval"}'
    client.submit(raw, idempotency_key="once")
    (request,) = script.requests
    assert request.content == raw
    assert request.headers["Idempotency-Key"] == "once"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Authorization"] == "Bearer secret"


def test_a_mapping_is_sent_as_json():
    script, client = scripted(httpx.Response(201, json={"id": "abc"}))
    client.submit({"kind": "eval"})
    assert json.loads(script.requests[0].content) == {"kind": "eval"}
    assert "Idempotency-Key" not in script.requests[0].headers


@pytest.mark.parametrize("name", ["", "..", "a/../b", "ABC", "abc?x=1", "0" * 13])
def test_a_name_that_is_no_id_reaches_no_path(name):
    script, client = scripted()
    with pytest.raises(ClientError) as caught:
        client.run(name)
    assert caught.value.param == "RUN"
    assert script.requests == []


def test_pages_are_read_to_their_end():
    script, client = scripted(
        httpx.Response(200, json={"data": [{"id": "1"}], "has_more": True, "next": "1"}),
        httpx.Response(200, json={"data": [{"id": "2"}], "has_more": False, "next": None}),
    )
    assert [row["id"] for row in client.looks("abc")] == ["1", "2"]
    assert "after" not in script.requests[0].url.params
    assert script.requests[1].url.params["after"] == "1"


def test_an_answer_that_is_no_json_comes_from_somebody_else():
    _, client = scripted(httpx.Response(200, text="<html>"))
    with pytest.raises(NotReachable, match="no Driftline"):
        client.run("abc")


def test_an_address_that_is_none_is_named():
    with pytest.raises(NotReachable), DriftlineClient("http://[") as client:
        client.run("abc")


def test_a_token_of_the_environment_is_used(monkeypatch):
    monkeypatch.setenv("DRIFTLINE_TOKEN", "from-env")
    script, client = scripted(httpx.Response(200, json={}))
    client.version()
    assert script.requests[0].headers["Authorization"] == "Bearer from-env"


def test_the_newline_behind_a_token_read_from_a_file_is_not_sent(monkeypatch):
    monkeypatch.setenv("DRIFTLINE_TOKEN", "from-file\n")
    script, client = scripted(httpx.Response(200, json={}))
    client.version()
    assert script.requests[0].headers["Authorization"] == "Bearer from-file"


@pytest.mark.parametrize("token", ["geh\u00e9im", "geh\neim", "geh eim", "geh\udcffeim", "geh\x7feim", "\tgeheim"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(monkeypatch, capsys, token):
    monkeypatch.setenv("DRIFTLINE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DRIFTLINE_TOKEN", token)
    assert main(["list"]) == 1
    told = capsys.readouterr()
    assert "DRIFTLINE_TOKEN" in told.err
    assert "geh" not in told.err + told.out
    assert "eim" not in told.err + told.out


def test_a_real_service_replays_a_submission_and_refuses_a_bad_one_by_field(client):
    first = client.submit(recipe(), idempotency_key="k1")
    assert client.submit(recipe(), idempotency_key="k1")["id"] == first["id"]
    assert client.run(first["id"][:4])["id"] == first["id"]
    with pytest.raises(Conflict):
        client.submit(recipe(seed=9), idempotency_key="k1")
    with pytest.raises(Refused) as caught:
        client.submit(recipe(max_steps=-1))
    assert caught.value.param == "max_steps"
    assert client.dry_run(recipe())["valid"] is True
    assert [run["id"] for run in client.runs(tag="demo")["data"]] == [first["id"]]
    assert client.ready()["status"] == "not_ready"
    assert client.cancel(first["id"])["state"] == "cancelled"
