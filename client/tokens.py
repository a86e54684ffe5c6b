"""Commands about bearer tokens. They work on the database of the home folder itself, since no request may make a token.

So they need the operator's access to the database, but no running service. A secret is printed once and kept nowhere.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from client import commands
from client.api import Json
from client.errors import ClientError
from client.service import settings_from_env, unusable_database
from core.store import tokens
from core.store.bearer import new_secret, token_hash
from core.store.database import Database
from core.store.errors import SchemaMismatch
from core.store.migrations_api import current_revision, head_revision, migrate, require_head
from core.store.models import ApiToken

_LONGEST_NAME = 100


def make(name: str, scope: str, *, as_json: bool) -> int:
    """Make a token and print its secret, which is shown nowhere again."""
    _check_name(name)
    secret = new_secret()
    with _database() as db, db.write() as session:
        if tokens.live(session, name):
            hint = f"choose another name, or first: driftline token {shlex.quote(name)} --revoke"
            raise ClientError(f"there is a token named {name!r} already", param="NAME", hint=hint, code="name_taken")
        first = not tokens.any_exist(session)
        row = tokens.create(session, name=name, token_hash=token_hash(secret), scope=scope)
    if as_json:
        commands.print_json(_document(row) | {"token": secret})
        return 0
    print(f"{secret}\n\nThis is the token {name!r} with the scope {scope}. It is shown only now.")
    print("Send it as `Authorization: Bearer TOKEN`; the command line reads DRIFTLINE_TOKEN.")
    if first:
        print("From now on the service answers nobody without a token, this machine's users and its page included.")
    return 0


def revoke(name: str, *, as_json: bool) -> int:
    """Revoke the tokens of this name; the next request with one is refused."""
    with _database() as db, db.write() as session:
        rows = [tokens.revoke(session, row.id) for row in tokens.live(session, name)]
    if not rows:
        hint = "`driftline tokens` lists them"
        raise ClientError(f"no token named {name!r} is in use", param="NAME", hint=hint, code="not_found")
    if as_json:
        commands.print_json({"data": [_document(row) for row in rows]})
    else:
        print(f"the token {name!r} is revoked")
    return 0


def list_(*, as_json: bool) -> int:
    """List tokens without their secrets, revoked ones too."""
    with _database() as db, db.read() as session:
        rows = [_document(row) for row in tokens.list_(session)]
    if as_json:
        commands.print_json({"data": rows})
        return 0
    from client import tables

    commands.print_parts(tables.tokens(rows))
    return 0


@contextmanager
def _database() -> Iterator[Database]:
    """The home's database; a home without one gets it, one of another version is refused, as everywhere but in ``up``."""
    settings = settings_from_env()
    try:
        _require_this_version(settings.database_url)
        db = Database(settings.database_url)
        try:
            yield db
        finally:
            db.dispose()
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise unusable_database(settings, error) from error


def _require_this_version(url: str) -> None:
    current = current_revision(url)
    try:
        if current is None:
            migrate(url)
        require_head(url)
    except SchemaMismatch as error:
        # Revisions are numbered, and `up` brings a database forward only: a newer one it refuses as well.
        hint = "`driftline up` migrates it" if current is not None and current < head_revision() else None
        raise ClientError(str(error), hint=hint, code="schema_mismatch") from error


def _check_name(name: str) -> None:
    if not name.isprintable() or not name.strip() or len(name) > _LONGEST_NAME:
        raise ClientError(
            f"a token cannot be named {name[:_LONGEST_NAME]!r}",
            param="NAME",
            hint=f"use 1 to {_LONGEST_NAME} printable characters, such as the machine or person that will have it",
            code="bad_name",
        )


def _document(row: ApiToken) -> Json:
    return {
        "id": row.id,
        "name": row.name,
        "scope": row.scope,
        "created_at": _iso(row.created_at),
        "last_used_at": _iso(row.last_used_at),
        "revoked_at": _iso(row.revoked_at),
    }


def _iso(seconds: float | None) -> str | None:
    """A time as the service writes it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
