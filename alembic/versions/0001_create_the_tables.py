"""Create the tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_directory()
    _create_rounds()
    _create_transactions()
    _create_search()
    _create_positions()
    _create_operation()


def _create_directory() -> None:
    op.create_table(
        "producer_groups",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("transaction_timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("interval_ms", sa.BigInteger(), nullable=False),
        sa.Column("max_checks", sa.BigInteger(), nullable=False),
        sa.Column("max_lifetime_ms", sa.BigInteger(), nullable=False),
        sa.Column("call_timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("batch_size", sa.BigInteger(), nullable=False),
        sa.Column("concurrency", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_producer_groups")),
    )
    op.create_table(
        "endpoints",
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("is_leased", sa.Boolean(), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["producer_group"],
            ["producer_groups.name"],
            name=op.f("fk_endpoints_producer_group_producer_groups"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("producer_group", "url", name=op.f("pk_endpoints")),
    )
    op.create_table(
        "secrets",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["producer_group"],
            ["producer_groups.name"],
            name=op.f("fk_secrets_producer_group_producer_groups"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_secrets")),
    )
    op.create_index(op.f("ix_secrets_producer_group"), "secrets", ["producer_group"], unique=False)
    op.create_table(
        "directory_version",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_directory_version")),
    )


def _create_rounds() -> None:
    op.create_table(
        "check_results",
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("answered", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_answered_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_latency_ms", sa.BigInteger(), nullable=True),
        sa.Column("unanswered", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_unanswered_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_failure", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("producer_group", "endpoint", name=op.f("pk_check_results")),
    )
    op.create_table(
        "unanswered_rounds",
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("first_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_ms", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", "failure", name=op.f("pk_unanswered_rounds")),
    )
    op.create_index(op.f("ix_unanswered_rounds_last_ms"), "unanswered_rounds", ["last_ms"], unique=False)


def _create_transactions() -> None:
    op.create_table(
        "transactions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("live", sa.SmallInteger(), nullable=False),
        sa.Column("blocked", sa.SmallInteger(), nullable=False),
        sa.Column("has_half", sa.SmallInteger(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("queue_offset", sa.BigInteger(), nullable=False),
        sa.Column("born_ms", sa.BigInteger(), nullable=False),
        sa.Column("appended_ms", sa.BigInteger(), nullable=False),
        sa.Column("at_offset", sa.BigInteger(), nullable=False),
        sa.Column("first_check_ms", sa.BigInteger(), nullable=True),
        sa.Column("next_due_ms", sa.BigInteger(), nullable=True),
        sa.Column("check_times", sa.BigInteger(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=True),
        sa.Column("max_checks", sa.BigInteger(), nullable=True),
        sa.Column("max_life_s", sa.BigInteger(), nullable=True),
        sa.Column("resolved_by", sa.Text(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("published_ms", sa.BigInteger(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("parked_offset", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("ordering_key", sa.Text(), nullable=True),
        sa.Column("receipts", sa.Text(), nullable=True),
        sa.Column("messages", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transactions")),
    )
    op.create_index(
        "ix_transactions_group", "transactions", ["producer_group", "live", "state", "born_ms", "id"], unique=False
    )
    op.create_index(
        "ix_transactions_key",
        "transactions",
        ["producer_group", "idempotency_key"],
        unique=False,
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "ix_transactions_pending",
        "transactions",
        ["producer_group", "appended_ms"],
        unique=False,
        sqlite_where=sa.text("state = 'PREPARED'"),
        postgresql_where=sa.text("state = 'PREPARED'"),
    )
    op.create_index("ix_transactions_state", "transactions", ["live", "state", "born_ms", "id"], unique=False)
    op.create_index("uq_transactions_transaction_id", "transactions", ["transaction_id"], unique=True)


def _create_search() -> None:
    op.create_table(
        "transaction_keys",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("born_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("message_key", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("topic", "born_ms", "id", "position", name=op.f("pk_transaction_keys")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_transaction_keys_key",
        "transaction_keys",
        ["message_key", "born_ms", "id"],
        unique=False,
        sqlite_where=sa.text("message_key IS NOT NULL"),
        postgresql_where=sa.text("message_key IS NOT NULL"),
    )
    op.create_table(
        "timeline_events",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("source_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("members", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", "source", "source_offset", name=op.f("pk_timeline_events")),
        sqlite_with_rowid=False,
    )


def _create_positions() -> None:
    op.create_table(
        "projection_positions",
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("journal_next", sa.BigInteger(), nullable=False),
        sa.Column("op_next", sa.BigInteger(), nullable=False),
        sa.Column("s", sa.BigInteger(), nullable=False),
        sa.Column("journal_topic_id", sa.Text(), nullable=False),
        sa.Column("op_topic_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id", name=op.f("pk_projection_positions")),
    )
    op.create_table(
        "group_counts",
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("prepared", sa.BigInteger(), nullable=False),
        sa.Column("committed", sa.BigInteger(), nullable=False),
        sa.Column("blocked", sa.BigInteger(), nullable=False),
        sa.Column("rolled_back", sa.BigInteger(), nullable=False),
        sa.Column("parked", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("producer_group", name=op.f("pk_group_counts")),
    )
    op.create_table(
        "projection_previous",
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", name=op.f("pk_projection_previous")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )


def _create_operation() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "redrive_jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("rate_per_s", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_redrive_jobs")),
    )
    op.create_index(op.f("ix_redrive_jobs_state"), "redrive_jobs", ["state"], unique=False)
    op.create_table(
        "cluster_identity",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("recorded_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic", name=op.f("pk_cluster_identity")),
    )
