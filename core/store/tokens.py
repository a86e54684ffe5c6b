"""Bearer tokens by their hash. Making the secret and hashing it is ``bearer``'s part: no secret ever reaches this module."""

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from core.store.database import now
from core.store.errors import NotFound
from core.store.models import ApiToken
from core.store.types import clock

TOUCH_EVERY_S = 60.0
"""How exact ``last_used_at`` is: reading with a token writes once in this time, and not at every request."""


def create(session: Session, *, name: str, token_hash: str, scope: str) -> ApiToken:
    """Store a new token's hash."""
    row = ApiToken(name=name, token_hash=token_hash, scope=scope, created_at=now(session))
    session.add(row)
    session.flush()
    return row


def find(session: Session, token_hash: str) -> ApiToken | None:
    """Return the token with this hash unless it was revoked."""
    return session.scalar(select(ApiToken).where(ApiToken.token_hash == token_hash, ApiToken.revoked_at.is_(None)))


def any_exist(session: Session) -> bool:
    """Return whether a token was ever made; revoking the last one does not open the service again."""
    return session.scalar(select(ApiToken.id).limit(1)) is not None


def list_(session: Session) -> list[ApiToken]:
    """Return all tokens, revoked ones too, oldest first."""
    return list(session.scalars(select(ApiToken).order_by(ApiToken.created_at, ApiToken.id)))


def live(session: Session, name: str) -> list[ApiToken]:
    """Return the tokens of this name that were not revoked."""
    return list(session.scalars(select(ApiToken).where(ApiToken.name == name, ApiToken.revoked_at.is_(None))))


def revoke(session: Session, token_id: str) -> ApiToken:
    """Revoke a token; raises NotFound. Revoking twice keeps the first time."""
    row = session.get(ApiToken, token_id)
    if row is None:
        raise NotFound(f"there is no token {token_id[:40]!r}")
    row.revoked_at = row.revoked_at or now(session)
    session.flush()
    return row


def touch_is_due(session: Session, token: ApiToken) -> bool:
    """Return whether the token's last recorded use is so old that :func:`touch` would write."""
    return token.last_used_at is None or now(session) - token.last_used_at >= TOUCH_EVERY_S


def touch(session: Session, token_id: str) -> None:
    """Record that the token was used just now, unless a use of the last ``TOUCH_EVERY_S`` seconds is recorded."""
    old = or_(ApiToken.last_used_at.is_(None), ApiToken.last_used_at <= clock() - TOUCH_EVERY_S)
    session.execute(update(ApiToken).where(ApiToken.id == token_id, old).values(last_used_at=clock()))
