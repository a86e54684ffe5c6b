"""Tables of later gradings of stored answers, and of the start models' pass rates. Columns and keys only.

What an evaluation found stays in its own rows for ever; a later grading adds rows here.
"""

from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.store.models import Base
from core.store.types import Big, DisplayText, Document, Hash, Id, new_id


class Regrade(Base):
    """One later grading of one evaluation's stored answers; counts only when `status` is finished."""

    __tablename__ = "regrades"
    __table_args__ = (Index(None, "evaluation_id", "created_at"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    evaluation_id: Mapped[str] = mapped_column(Id, ForeignKey("evaluations.id"))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    """The run that graded, not the one that asked."""
    attempt: Mapped[int]
    verifier: Mapped[str]
    verifier_version: Mapped[str]
    status: Mapped[str] = mapped_column(String(16), default="running")
    records: Mapped[int | None]
    changed: Mapped[int | None]
    """Records whose verdict is another than the original one."""
    accuracy: Mapped[float | None]
    ci_low: Mapped[float | None]
    ci_high: Mapped[float | None]
    correct: Mapped[float | None]
    measures: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]


class LaterVerdict(Base):
    """The verdict of one later grading on one stored record."""

    __tablename__ = "later_verdicts"
    __table_args__ = (Index(None, "record_id"),)

    regrade_id: Mapped[str] = mapped_column(Id, ForeignKey("regrades.id"), primary_key=True)
    record_id: Mapped[int] = mapped_column(Big, ForeignKey("item_records.id"), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(DisplayText)
    extracted: Mapped[str | None] = mapped_column(DisplayText)
    verify_ms: Mapped[float | None]
    details: Mapped[dict[str, Any] | None]


class PassRate(Base):
    """How often a start model solved one item: `right` of `judged` samples under the settings that `key` hashes."""

    __tablename__ = "pass_rates"

    key: Mapped[str] = mapped_column(Hash, primary_key=True)
    item_sha256: Mapped[str] = mapped_column(Hash, primary_key=True)
    right: Mapped[int]
    judged: Mapped[int]
    settings: Mapped[dict[str, Any]] = mapped_column(Document)
    created_at: Mapped[float]
