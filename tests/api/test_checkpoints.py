"""Checkpoints: listing, downloads with ranges, path safety, deletion."""

import hashlib
from pathlib import Path

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from core.store import models
from core.store.database import Database
from tests.api.conftest import Builder, FinishedRun

CONTENT = b"weights at 4"
NAME = "model.safetensors"


def _path(finished: FinishedRun) -> str:
    return f"/checkpoints/{finished.checkpoints[0]}/files/{NAME}"


def _folder(build: Builder, finished: FinishedRun) -> Path:
    return build.settings.checkpoint_dir(finished.id, 1, 4)


def test_list_tells_files_and_hashes_but_no_path(client: TestClient, finished: FinishedRun) -> None:
    body = client.get(f"/runs/{finished.id}/checkpoints").json()
    assert [row["step"] for row in body["data"]] == [4, 8]
    first = body["data"][0]
    assert "path" not in first
    assert [file["name"] for file in first["files"]] == ["config.json", NAME]
    assert client.get(first["files"][1]["href"]).content == CONTENT


def test_download_has_hash_length_and_a_fixed_name(client: TestClient, finished: FinishedRun) -> None:
    answer = client.get(_path(finished))
    assert answer.content == CONTENT
    assert answer.headers["ETag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{finished.checkpoints[0]}-{NAME}"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("wanted", "status", "content", "span"),
    [
        ("bytes=0-6", 206, b"weights", "bytes 0-6/12"),
        ("bytes=8-", 206, b"at 4", "bytes 8-11/12"),
        ("bytes=-1", 206, b"4", "bytes 11-11/12"),
        ("bytes=-99", 206, CONTENT, "bytes 0-11/12"),
        ("bytes=4-99999999", 206, CONTENT[4:], "bytes 4-11/12"),
        ("bytes=0-0,2-3", 200, CONTENT, None),
        ("bytes=5-2", 200, CONTENT, None),
        ("lines=0-1", 200, CONTENT, None),
        ("bytes=" + "9" * 30 + "-", 200, CONTENT, None),
        ("bytes=-", 200, CONTENT, None),
    ],
)
def test_ranges(
    client: TestClient, finished: FinishedRun, wanted: str, status: int, content: bytes, span: str | None
) -> None:
    answer = client.get(_path(finished), headers={"Range": wanted})
    assert (answer.status_code, answer.content, answer.headers.get("Content-Range")) == (status, content, span)


@pytest.mark.parametrize("wanted", ["bytes=12-", "bytes=99-100", "bytes=-0"])
def test_range_beyond_the_end_is_refused_with_the_size(client: TestClient, finished: FinishedRun, wanted: str) -> None:
    answer = client.get(_path(finished), headers={"Range": wanted})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == "bytes */12"


def test_range_of_another_version_gets_the_whole_file(client: TestClient, finished: FinishedRun) -> None:
    answer = client.get(_path(finished), headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    assert answer.status_code == 200


def test_known_file_is_not_sent_again(client: TestClient, finished: FinishedRun) -> None:
    etag = client.get(_path(finished)).headers["ETag"]
    assert client.get(_path(finished), headers={"If-None-Match": etag}).status_code == 304


@pytest.mark.parametrize(
    "name",
    [
        "other.bin",
        "..%2f..%2fdriftline.db",
        "%2e%2e%2f%2e%2e%2fdriftline.db",
        "%2Fetc%2Fpasswd",
        "model.safetensors%00",
        "model.safetensors%23",
        "%3fx",
        "%2e",
        "%2e%2e",
        "%20",
        "x" * 300,
    ],
)
def test_no_name_but_a_listed_one_reaches_a_file(client: TestClient, finished: FinishedRun, name: str) -> None:
    answer = client.get(f"/checkpoints/{finished.checkpoints[0]}/files/{name}")
    assert answer.status_code in {404, 422}
    assert "error" in answer.json()


def test_link_in_place_of_the_file_is_refused(client: TestClient, build: Builder, finished: FinishedRun) -> None:
    secret = build.settings.home / "secret"
    secret.write_bytes(CONTENT)
    file = _folder(build, finished) / NAME
    file.unlink()
    file.symlink_to(secret)
    answer = client.get(_path(finished))
    assert answer.status_code == 410
    assert "link" in answer.json()["error"]["message"]


def test_link_in_place_of_a_folder_is_refused(
    client: TestClient, build: Builder, finished: FinishedRun, tmp_path: Path
) -> None:
    folder = _folder(build, finished)
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    folder.symlink_to(moved)
    assert client.get(_path(finished)).status_code == 410


@pytest.mark.parametrize("stored", ["../outside", "/etc", "runs/../../outside", ""])
def test_stored_path_outside_the_home_is_refused(
    client: TestClient, db: Database, finished: FinishedRun, stored: str
) -> None:
    with db.write() as session:
        session.execute(update(models.Checkpoint).values(path=stored))
    assert client.get(_path(finished)).status_code == 410


def test_missing_file_is_gone_and_not_an_error_of_the_service(
    client: TestClient, build: Builder, finished: FinishedRun
) -> None:
    (_folder(build, finished) / NAME).unlink()
    assert client.get(_path(finished)).status_code == 410


def test_file_of_another_size_is_not_sent_as_if_it_were_whole(
    client: TestClient, build: Builder, finished: FinishedRun
) -> None:
    (_folder(build, finished) / NAME).write_bytes(b"cut")
    answer = client.get(_path(finished))
    assert answer.status_code == 410
    assert answer.json()["error"]["code"] == "checkpoint_damaged"


def test_deleted_checkpoint_is_gone_with_its_folder(client: TestClient, build: Builder, finished: FinishedRun) -> None:
    checkpoint = finished.checkpoints[0]
    assert client.delete(f"/checkpoints/{checkpoint}").status_code == 204
    assert not _folder(build, finished).exists()
    assert client.get(f"/checkpoints/{checkpoint}").status_code == 410
    assert client.delete(f"/checkpoints/{checkpoint}").status_code == 410


def test_last_checkpoint_of_a_running_run_is_kept(client: TestClient, build: Builder) -> None:
    fence = build.running()
    older, latest = build.checkpoint(fence, 4), build.checkpoint(fence, 8)
    answer = client.delete(f"/checkpoints/{latest}")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "checkpoint_in_use"
    assert client.delete(f"/checkpoints/{older}").status_code == 204


def test_checkpoint_that_a_waiting_fork_begins_from_is_kept(client: TestClient, finished: FinishedRun) -> None:
    client.post(f"/runs/{finished.id}/fork", json={"from_step": 4})
    assert client.delete(f"/checkpoints/{finished.checkpoints[0]}").status_code == 409
    assert client.delete(f"/checkpoints/{finished.checkpoints[1]}").status_code == 204


def test_unknown_checkpoint_is_not_found(client: TestClient) -> None:
    assert client.get("/checkpoints/ffffffffffff").status_code == 404
