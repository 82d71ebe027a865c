"""Let groups fetch their checks"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pull_checks",
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("check_number", sa.BigInteger(), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=False),
        sa.Column("claims", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", name=op.f("pk_pull_checks")),
    )
    op.create_index(
        op.f("ix_pull_checks_producer_group_due_ms"), "pull_checks", ["producer_group", "due_ms"], unique=False
    )
    op.create_index(op.f("ix_pull_checks_queue_id"), "pull_checks", ["queue_id"], unique=False)
    op.create_table(
        "pull_queues",
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("tick_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id", name=op.f("pk_pull_queues")),
    )
