"""Keep halts and what was given up"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "queue_halts",
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id", name=op.f("pk_queue_halts")),
    )
    op.create_table(
        "given_up",
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("producer_group", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("blocked", sa.SmallInteger(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("queue_offset", sa.BigInteger(), nullable=False),
        sa.Column("born_ms", sa.BigInteger(), nullable=False),
        sa.Column("appended_ms", sa.BigInteger(), nullable=False),
        sa.Column("check_times", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("given_up_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", name=op.f("pk_given_up")),
    )
    op.create_index("ix_given_up_key", "given_up", ["producer_group", "idempotency_key"], unique=False)
