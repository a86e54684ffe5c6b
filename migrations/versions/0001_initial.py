"""All tables of the first release, and the triggers that keep the log append-only.

Revises: nothing
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


# SQLite's INTEGER is 64 bits wide, and only under that name can it be an autoincrementing key.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

SQLITE_TRIGGERS = [
    f"CREATE TRIGGER log_entries_no_{verb} BEFORE {verb.upper()} ON log_entries "
    "BEGIN SELECT RAISE(ABORT, 'log_entries is append-only'); END"
    for verb in ("update", "delete")
]
POSTGRESQL_TRIGGERS = [
    "CREATE FUNCTION log_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'log_entries is append-only'; END $$",
    "CREATE TRIGGER log_entries_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON log_entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION log_entries_refuse()",
]


def upgrade() -> None:  # noqa: PLR0915 - one statement a table
    """Apply this revision."""
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_tokens_token_hash")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("scope_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("status_code", BIG, nullable=True),
        sa.Column("response", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "log_entries",
        sa.Column("seq", BIG, autoincrement=False, nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("payload_hash", sa.String(length=64), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_log_entries")),
        sa.UniqueConstraint("hash", name=op.f("uq_log_entries_hash")),
    )
    op.create_table(
        "prompts",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_prompts")),
    )
    op.create_table(
        "runs",
        sa.Column("seq", BIG, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("submitted", sa.JSON(), nullable=False),
        sa.Column("recipe_hash", sa.String(length=64), nullable=False),
        sa.Column("family_hash", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("device_kind", sa.String(length=16), nullable=True),
        sa.Column("priority", BIG, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("cancel_requested_at", sa.Double(), nullable=True),
        sa.Column("pause_requested_at", sa.Double(), nullable=True),
        sa.Column("parent_id", sa.String(length=12), nullable=True),
        sa.Column("parent_step", BIG, nullable=True),
        sa.Column("recipe_diff", sa.JSON(), nullable=True),
        sa.Column("exploratory", sa.Boolean(), nullable=False),
        sa.Column("outcome_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("phase", sa.String(length=32), nullable=True),
        sa.Column("progress_done", BIG, nullable=True),
        sa.Column("progress_total", BIG, nullable=True),
        sa.Column("progress_unit", sa.String(length=32), nullable=True),
        sa.Column("step", BIG, nullable=True),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("lease_worker", sa.String(length=12), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("max_attempts", BIG, nullable=False),
        sa.Column("rung_at", sa.Double(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.Column("prespecification_id", sa.String(length=12), nullable=True),
        sa.Column("run_of_family", BIG, nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("probe", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["runs.id"], name=op.f("fk_runs_parent_id_runs")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_family_hash"), ["family_hash"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_lease_expires_at"), ["lease_expires_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_state_priority_seq"), ["state", "priority", "seq"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("pid", BIG, nullable=False),
        sa.Column("device", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("current_run_id", sa.String(length=12), nullable=True),
        sa.Column("unready_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "analyses",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("target_run_id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_analyses_run_id_runs")),
        sa.ForeignKeyConstraint(["target_run_id"], ["runs.id"], name=op.f("fk_analyses_target_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_analyses")),
    )
    with op.batch_alter_table("analyses", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_analyses_run_id"), ["run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_analyses_target_run_id"), ["target_run_id"], unique=False)

    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("worker_id", sa.String(length=12), nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("device", sa.JSON(), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=True),
        sa.Column("runner_pid", BIG, nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("resumed_from_step", BIG, nullable=True),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "number", name=op.f("uq_attempts_run_id_number")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("step", BIG, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", BIG, nullable=False),
        sa.Column("has_optimizer", sa.Boolean(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("run_id", "attempt", "step", name=op.f("uq_checkpoints_run_id_attempt_step")),
    )
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkpoints_sha256"), ["sha256"], unique=False)

    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("step", BIG, nullable=True),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("model_ref", sa.String(length=255), nullable=False),
        sa.Column("checkpoint_sha256", sa.String(length=64), nullable=True),
        sa.Column("suite", sa.String(length=255), nullable=False),
        sa.Column("split", sa.String(length=255), nullable=True),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("samples", BIG, nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("engine", sa.JSON(), nullable=False),
        sa.Column("dataset_hash", sa.String(length=64), nullable=True),
        sa.Column("verifier", sa.String(length=255), nullable=True),
        sa.Column("verifier_version", sa.String(length=255), nullable=True),
        sa.Column("n_items", BIG, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("ci_low", sa.Double(), nullable=True),
        sa.Column("ci_high", sa.Double(), nullable=True),
        sa.Column("correct", sa.Double(), nullable=True),
        sa.Column("truncated_share", sa.Double(), nullable=True),
        sa.Column("no_answer_share", sa.Double(), nullable=True),
        sa.Column("mean_tokens", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_evaluations_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
    )
    with op.batch_alter_table("evaluations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_evaluations_run_id_suite_step"), ["run_id", "suite", "step"], unique=False)

    op.create_table(
        "events",
        sa.Column("seq", BIG, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("attempt", BIG, nullable=True),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_run_id_seq"), ["run_id", "seq"], unique=False)

    op.create_table(
        "metric_series",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("count", BIG, nullable=False),
        sa.Column("first_step", BIG, nullable=False),
        sa.Column("last_step", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_metric_series_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "key", name=op.f("pk_metric_series")),
    )
    op.create_table(
        "metrics",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("step", BIG, nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("nonfinite", sa.String(length=4), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_metrics_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "key", "step", "attempt", name=op.f("pk_metrics")),
    )
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.create_index(
            "ix_metrics_level",
            ["run_id", "key", "superseded", "level", "step", "attempt", "value", "nonfinite", "at"],
            unique=False,
        )

    op.create_table(
        "outbox",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.Column("tries", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_outbox_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_outbox_run_id"), ["run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_outbox_sent_at_id"), ["sent_at", "id"], unique=False)

    op.create_table(
        "prespecifications",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("automatic", sa.Boolean(), nullable=False),
        sa.Column("exploratory", sa.Boolean(), nullable=False),
        sa.Column("clock", sa.String(length=16), nullable=False),
        sa.Column("frozen_at", sa.Double(), nullable=False),
        sa.Column("log_seq", BIG, nullable=False),
        sa.Column("amendments", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_prespecifications_run_id_runs")),
        sa.ForeignKeyConstraint(
            ["log_seq"], ["log_entries.seq"], name=op.f("fk_prespecifications_log_seq_log_entries")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prespecifications")),
        sa.UniqueConstraint("log_seq", name=op.f("uq_prespecifications_log_seq")),
    )
    with op.batch_alter_table("prespecifications", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_prespecifications_hash"), ["hash"], unique=False)
        batch_op.create_index(batch_op.f("ix_prespecifications_run_id"), ["run_id"], unique=False)

    op.create_table(
        "rollouts",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("step", BIG, nullable=False),
        sa.Column("group_index", BIG, nullable=False),
        sa.Column("item_id", sa.String(length=255), nullable=False),
        sa.Column("sample", BIG, nullable=False),
        sa.Column("prompt_sha256", sa.String(length=64), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("reward_terms", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("extracted", sa.Text(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("logp_mean", sa.Double(), nullable=True),
        sa.Column("n_tokens", BIG, nullable=False),
        sa.Column("finish_reason", sa.String(length=16), nullable=False),
        sa.Column("zero_variance", sa.Boolean(), nullable=False),
        sa.Column("weights_version", BIG, nullable=True),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rollouts_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rollouts_run_id_step_id"), ["run_id", "step", "id"], unique=False)

    op.create_table(
        "run_after",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("after_id", sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(["after_id"], ["runs.id"], name=op.f("fk_run_after_after_id_runs")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_after_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "after_id", name=op.f("pk_run_after")),
    )
    with op.batch_alter_table("run_after", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_after_after_id"), ["after_id"], unique=False)

    op.create_table(
        "run_tags",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("tag", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_tags_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "tag", name=op.f("pk_run_tags")),
    )
    with op.batch_alter_table("run_tags", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_tags_tag"), ["tag"], unique=False)

    op.create_table(
        "checkpoint_files",
        sa.Column("checkpoint_id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("bytes", BIG, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_checkpoint_files_checkpoint_id_checkpoints")
        ),
        sa.PrimaryKeyConstraint("checkpoint_id", "name", name=op.f("pk_checkpoint_files")),
    )
    op.create_table(
        "item_records",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("evaluation_id", sa.String(length=12), nullable=False),
        sa.Column("item_id", sa.String(length=255), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("sample", BIG, nullable=False),
        sa.Column("prompt_sha256", sa.String(length=64), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("gold", sa.Text(), nullable=True),
        sa.Column("extracted", sa.Text(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.String(length=16), nullable=False),
        sa.Column("n_tokens", BIG, nullable=False),
        sa.Column("verifier_version", sa.String(length=255), nullable=True),
        sa.Column("verify_ms", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_item_records_evaluation_id_evaluations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_item_records")),
        sa.UniqueConstraint(
            "evaluation_id", "item_id", "sample", name=op.f("uq_item_records_evaluation_id_item_id_sample")
        ),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("item_records", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_item_records_evaluation_id_position_sample"),
            ["evaluation_id", "position", "sample"],
            unique=False,
        )

    op.create_table(
        "looks",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("step", BIG, nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.Column("evaluation_id", sa.String(length=12), nullable=False),
        sa.Column("checkpoint_sha256", sa.String(length=64), nullable=True),
        sa.Column("suite", sa.String(length=255), nullable=False),
        sa.Column("reference", sa.String(length=64), nullable=False),
        sa.Column("n", BIG, nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("ci_low", sa.Double(), nullable=True),
        sa.Column("ci_high", sa.Double(), nullable=True),
        sa.Column("lost", sa.Double(), nullable=False),
        sa.Column("gained", sa.Double(), nullable=False),
        sa.Column("d_histogram", sa.JSON(), nullable=False),
        sa.Column("statistic", sa.Double(), nullable=True),
        sa.Column("threshold", sa.Double(), nullable=True),
        sa.Column("decided", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("draw", sa.JSON(), nullable=False),
        sa.Column("rule_state", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluations.id"], name=op.f("fk_looks_evaluation_id_evaluations")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_looks_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_looks")),
        sa.UniqueConstraint(
            "run_id", "attempt", "step", "suite", "reference", name=op.f("uq_looks_run_id_attempt_step_suite_reference")
        ),
    )
    sqlite = op.get_bind().dialect.name == "sqlite"
    for trigger in SQLITE_TRIGGERS if sqlite else POSTGRESQL_TRIGGERS:
        op.execute(trigger)


def downgrade() -> None:
    """Take this revision back; a table takes its indexes with it."""
    op.drop_table("looks")
    op.drop_table("item_records")
    op.drop_table("checkpoint_files")
    op.drop_table("run_tags")
    op.drop_table("run_after")
    op.drop_table("rollouts")
    op.drop_table("prespecifications")
    op.drop_table("outbox")
    op.drop_table("metrics")
    op.drop_table("metric_series")
    op.drop_table("events")
    op.drop_table("evaluations")
    op.drop_table("checkpoints")
    op.drop_table("attempts")
    op.drop_table("analyses")
    op.drop_table("workers")
    op.drop_table("runs")
    op.drop_table("prompts")
    op.drop_table("log_entries")
    op.drop_table("leases")
    op.drop_table("idempotency_keys")
    op.drop_table("api_tokens")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION log_entries_refuse()")
