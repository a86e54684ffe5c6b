"""Analyses as documents."""

from typing import Any

from api.times import iso
from core.store.models import Analysis


def summary(row: Analysis) -> dict[str, Any]:
    """An analysis as lists show it."""
    return {
        "id": row.id,
        "run_id": row.run_id,
        "target_run_id": row.target_run_id,
        "name": row.name,
        "figures": row.figures,
        "created_at": iso(row.created_at),
    }


def document(row: Analysis) -> dict[str, Any]:
    """An analysis with its result."""
    return summary(row) | {"params": row.params, "result": row.result, "attempt": row.attempt}
