"""Rendered prompts, each stored once under the hash of its token ids. Rendering and hashing are the engine's part."""

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.store.database import insert_for
from core.store.errors import NotFound
from core.store.models import Prompt


def put_many(session: Session, prompts: Iterable[tuple[str, Sequence[int], str]]) -> None:
    """Store (sha256, token ids, text) triples; those that are there already stay as they are."""
    rows = {sha256: {"sha256": sha256, "token_ids": list(ids), "text": text} for sha256, ids, text in prompts}
    if rows:
        session.execute(insert_for(session)(Prompt).on_conflict_do_nothing(), list(rows.values()))


def get(session: Session, sha256: str) -> Prompt:
    """Return one prompt; raises NotFound."""
    row = session.get(Prompt, sha256)
    if row is None:
        raise NotFound(f"there is no prompt with sha256 {sha256[:64]!r}")
    return row


def get_many(session: Session, hashes: Iterable[str]) -> dict[str, Prompt]:
    """Return the prompts that exist among ``hashes``, by hash."""
    return {row.sha256: row for row in session.scalars(select(Prompt).where(Prompt.sha256.in_(set(hashes))))}
