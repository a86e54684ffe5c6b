"""Exports of one checkpoint. Refused by name until its forms are built."""

from core.jobs import Outcome, UserError
from core.recipes.weights import Export
from core.tasks.pool import VerifierPool
from core.weights.making import Making


def export(making: Making, block: Export | None, pool: VerifierPool | None) -> Outcome:
    """Refuse."""
    raise UserError(
        "export_not_built", f"run {making.run.id}: exports are not built yet; download the checkpoint's files"
    )
