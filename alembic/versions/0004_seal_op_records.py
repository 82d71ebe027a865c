"""Seal op records"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bridge_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("signs", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_bridge_keys")),
    )
    op.create_table(
        "op_beliefs",
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("op_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id", name=op.f("pk_op_beliefs")),
    )
