"""Keep running totals of how old pending transactions are; the projector that takes over fills them"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pending_ages",
        sa.Column("span_s", sa.Integer(), primary_key=True),
        sa.Column("begin_s", sa.BigInteger(), primary_key=True),
        sa.Column("producer_group", sa.Text(), primary_key=True),
        sa.Column("pending", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
