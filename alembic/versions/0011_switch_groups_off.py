"""Switch groups off"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("producer_groups", sa.Column("when_exhausted", sa.Text(), server_default="park", nullable=False))
    op.add_column(
        "producer_groups", sa.Column("accepts_prepares", sa.SmallInteger(), server_default="1", nullable=False)
    )
