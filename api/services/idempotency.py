"""Answering a repeated request as the first one was answered.

The key is claimed in a transaction of its own before the request is even checked, so that a second request that arrives
meanwhile is told so instead of waiting or working twice, and a repeat is answered although what it names may be gone by then.
The answer is stored in the transaction that does the work; when the request is refused, the key is given back and the client
may mend its request under the same key.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from api.errors import Conflict, InvalidRequest
from core.store import idempotency
from core.store.database import Database

Work = Callable[[Session], tuple[int, dict[str, Any]]]

_KEY = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True)
class Answer:
    """A status and a body, and whether they were given before."""

    status: int
    body: dict[str, Any]
    replayed: bool = False


def once(db: Database, *, scope: str, key: str | None, request: bytes, prepare: Callable[[], Work]) -> Answer:
    """Check and do a request, at most once per (scope, key); without a key simply do it.

    ``prepare`` checks it, in transactions of its own, and returns the work, which is done in one write transaction.
    ``request`` is what must be equal between repeats. Raises what either raises, and :class:`Conflict` for another request
    under the key, and for a first request that is still being answered.
    """
    if key is None:
        work = prepare()
        with db.write() as session:
            return Answer(*work(session))
    if _KEY.fullmatch(key) is None:
        message = "an idempotency key has 1 to 200 visible ASCII characters without spaces"
        raise InvalidRequest(message, param="Idempotency-Key", hint="a UUID is a good key")
    with db.write() as session:
        earlier = _begin(session, scope, key, hashlib.sha256(request).hexdigest())
    if earlier is not None:
        return earlier
    try:
        work = prepare()
        with db.write() as session:
            status, body = work(session)
            idempotency.complete(session, scope_id=scope, key=key, status_code=status, response=body)
    except BaseException:
        with db.write() as session:
            idempotency.release(session, scope_id=scope, key=key)
        raise
    return Answer(status, body)


def _begin(session: Session, scope: str, key: str, body_hash: str) -> Answer | None:
    match idempotency.begin(session, scope_id=scope, key=key, body_hash=body_hash):
        case idempotency.Fresh():
            return None
        case idempotency.Replay(status_code, response):
            return Answer(status_code, response, replayed=True)
        case idempotency.Conflict():
            raise Conflict(
                "this idempotency key was used for another request",
                param="Idempotency-Key",
                code="idempotency_conflict",
                hint="use a new key for a new request",
            )
        case idempotency.InFlight():
            raise Conflict(
                "the first request with this idempotency key is still being answered",
                param="Idempotency-Key",
                code="idempotency_in_flight",
                hint="repeat the request in a moment; it will then get the first answer",
            )
