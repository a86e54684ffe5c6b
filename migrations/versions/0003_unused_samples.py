"""Samples that dynamic sampling drew and left out are marked.

Revises: 0002
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision; every sample stored so far was learnt from."""
    op.add_column("rollouts", sa.Column("used", sa.Boolean(), nullable=False, server_default=sa.true()))


def downgrade() -> None:
    """Take this revision back."""
    with op.batch_alter_table("rollouts") as batch:
        batch.drop_column("used")
