"""Later gradings beside the original ones, the measures and clusters of evaluations, and start models' pass rates.

Revises: 0001
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


# SQLite's INTEGER is 64 bits wide, and only under that name can it be an autoincrementing key.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply this revision."""
    op.add_column("evaluations", sa.Column("measures", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("item_records", sa.Column("cluster", sa.String(length=255), nullable=True))
    op.add_column("item_records", sa.Column("details", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "regrades",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("evaluation_id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("verifier", sa.String(length=255), nullable=False),
        sa.Column("verifier_version", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("records", BIG, nullable=True),
        sa.Column("changed", BIG, nullable=True),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("ci_low", sa.Double(), nullable=True),
        sa.Column("ci_high", sa.Double(), nullable=True),
        sa.Column("correct", sa.Double(), nullable=True),
        sa.Column("measures", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_regrades_evaluation_id_evaluations")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_regrades_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_regrades")),
    )
    op.create_index(op.f("ix_regrades_evaluation_id_created_at"), "regrades", ["evaluation_id", "created_at"])
    op.create_index(op.f("ix_regrades_run_id"), "regrades", ["run_id"])
    op.create_table(
        "later_verdicts",
        sa.Column("regrade_id", sa.String(length=12), nullable=False),
        sa.Column("record_id", BIG, nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("extracted", sa.Text(), nullable=True),
        sa.Column("verify_ms", sa.Double(), nullable=True),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["record_id"], ["item_records.id"], name=op.f("fk_later_verdicts_record_id_item_records")
        ),
        sa.ForeignKeyConstraint(["regrade_id"], ["regrades.id"], name=op.f("fk_later_verdicts_regrade_id_regrades")),
        sa.PrimaryKeyConstraint("regrade_id", "record_id", name=op.f("pk_later_verdicts")),
    )
    op.create_index(op.f("ix_later_verdicts_record_id"), "later_verdicts", ["record_id"])
    op.create_table(
        "pass_rates",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("item_sha256", sa.String(length=64), nullable=False),
        sa.Column("right", BIG, nullable=False),
        sa.Column("judged", BIG, nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "item_sha256", name=op.f("pk_pass_rates")),
    )


def downgrade() -> None:
    """Take this revision back."""
    op.drop_table("pass_rates")
    op.drop_table("later_verdicts")
    op.drop_table("regrades")
    with op.batch_alter_table("item_records") as batch:
        batch.drop_column("details")
        batch.drop_column("cluster")
    with op.batch_alter_table("evaluations") as batch:
        batch.drop_column("measures")
