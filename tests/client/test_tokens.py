"""``driftline token`` and ``driftline tokens`` on a real database, and what a real api makes of the tokens."""

import json
import re

import httpx
import pytest

from client.cli import main
from core.store import tokens
from core.store.migrations_api import current_revision, head_revision
from tests.api.conftest import recipe


def told(capsys, *arguments, status=0):
    assert main(arguments) == status
    return capsys.readouterr().out


def made(capsys, name, *options):
    return json.loads(told(capsys, "token", name, *options, "--json"))["token"]


def asked(url, secret, method="GET", path="/runs", **body):
    return httpx.request(method, url + path, headers={"Authorization": f"Bearer {secret}"}, **body).status_code


def last_used(db):
    with db.read() as session:
        return {row.name: row.last_used_at for row in tokens.list_(session)}


def test_a_token_opens_what_its_scope_allows_and_nothing_once_it_is_revoked(capsys, url):
    assert httpx.get(f"{url}/runs").status_code == 200, "without tokens this machine may ask"
    text = told(capsys, "token", "reader")
    reader = text.splitlines()[0]
    assert re.fullmatch(r"driftline_[\w-]{43}", reader)
    assert "answers nobody without a token" in text
    submitter, admin = made(capsys, "job", "--scope", "submit"), made(capsys, "me", "--scope", "admin")
    assert len({reader, submitter, admin}) == 3

    assert httpx.get(f"{url}/runs").status_code == 401
    assert asked(url, reader) == 200
    assert asked(url, reader, "POST", json=recipe()) == 403
    assert asked(url, submitter, "POST", json=recipe()) == 201
    assert asked(url, submitter, "DELETE", "/runs/ffffffffffff") == 403
    assert asked(url, admin, "DELETE", "/runs/ffffffffffff") == 404

    assert told(capsys, "token", "reader", "--revoke") == "the token 'reader' is revoked\n"
    assert asked(url, reader) == 401
    assert asked(url, submitter) == 200


def test_revoking_the_last_token_does_not_open_the_service(capsys, url):
    secret = made(capsys, "only")
    told(capsys, "token", "only", "--revoke")
    assert asked(url, secret) == 401
    assert httpx.get(f"{url}/runs").status_code == 401


def test_the_client_sends_the_token_of_its_environment(capsys, url, monkeypatch):
    secret = made(capsys, "laptop")
    assert main(["list"]) == 1
    assert "asks for a token" in capsys.readouterr().err
    monkeypatch.setenv("DRIFTLINE_TOKEN", secret)
    assert told(capsys, "list") == "no runs\n"


def test_the_list_shows_no_secret_and_no_hash(capsys, url, db):
    assert told(capsys, "tokens").startswith("no tokens")
    secret = made(capsys, "laptop", "--scope", "submit")
    assert asked(url, secret) == 200
    made(capsys, "old")
    told(capsys, "token", "old", "--revoke")
    text, document = told(capsys, "tokens"), told(capsys, "tokens", "--json")
    with db.read() as session:
        stored = tokens.list_(session)[0].token_hash
    for shown in (text, document):
        assert secret not in shown
        assert stored not in shown
    lines = [line.split() for line in text.splitlines()]
    assert lines[1][:2] == ["laptop", "submit"]
    laptop, old = json.loads(document)["data"]
    assert laptop["last_used_at"] is not None
    assert laptop["revoked_at"] is None
    assert old["last_used_at"] is None
    assert old["revoked_at"] is not None


def test_a_name_is_free_again_once_its_token_is_revoked(capsys, url):
    first = made(capsys, "laptop")
    assert main(["token", "laptop"]) == 1
    error = capsys.readouterr().err
    assert "a token named 'laptop' already" in error
    assert "driftline token laptop --revoke" in error
    told(capsys, "token", "laptop", "--revoke")
    second = made(capsys, "laptop")
    assert (asked(url, first), asked(url, second)) == (401, 200)


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "x" * 101])
def test_a_name_that_cannot_be_shown_is_refused_with_what_is_allowed(capsys, url, name):
    assert main(["token", name]) == 1
    assert "1 to 100 printable characters" in capsys.readouterr().err


def test_a_token_that_does_not_exist_cannot_be_revoked(capsys, url):
    assert main(["token", "nobody", "--revoke"]) == 1
    assert "`driftline tokens` lists them" in capsys.readouterr().err


def test_use_is_recorded_once_a_minute_and_reading_writes_nothing_in_between(capsys, url, db):
    secret = made(capsys, "laptop")
    assert last_used(db) == {"laptop": None}
    asked(url, secret)
    first = last_used(db)["laptop"]
    assert first is not None

    def used(seconds_ago):
        with db.write() as session:
            tokens.list_(session)[0].last_used_at = at = first - seconds_ago
        asked(url, secret)
        return at

    assert used(50) == last_used(db)["laptop"], "a recent use is not written again"
    assert used(61) < last_used(db)["laptop"]


def test_a_home_without_a_database_gets_one_with_its_first_token(capsys, tmp_path, monkeypatch):
    home = tmp_path / "new"
    monkeypatch.setenv("DRIFTLINE_HOME", str(home))
    monkeypatch.delenv("DRIFTLINE_DATABASE_URL", raising=False)
    made(capsys, "me")
    assert current_revision(f"sqlite:///{home / 'driftline.db'}") == head_revision()


def test_a_database_of_a_newer_version_is_refused(capsys, settings, monkeypatch):
    from sqlalchemy import create_engine, text

    monkeypatch.setenv("DRIFTLINE_HOME", str(settings.home))
    engine = create_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    assert main(["tokens"]) == 1
    error = capsys.readouterr().err
    assert "newer version" in error
    assert "driftline up" not in error, "`up` refuses it too"


def test_a_database_of_an_older_version_is_refused_with_what_migrates_it(capsys, settings, monkeypatch):
    monkeypatch.setenv("DRIFTLINE_HOME", str(settings.home))
    for module in ("client.tokens", "core.store.migrations_api"):
        monkeypatch.setattr(f"{module}.head_revision", lambda: "9999")
    assert main(["tokens"]) == 1
    error = capsys.readouterr().err
    assert "this code needs 9999" in error
    assert "`driftline up` migrates it" in error


def test_a_database_that_cannot_be_reached_is_an_error_in_words(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DRIFTLINE_HOME", str(tmp_path))
    monkeypatch.setenv("DRIFTLINE_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    assert main(["tokens"]) == 1
    error = capsys.readouterr().err
    assert "DRIFTLINE_DATABASE_URL" in error
    assert "Traceback" not in error
