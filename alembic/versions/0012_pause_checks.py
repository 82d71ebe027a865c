"""Pause the checks of groups"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("producer_groups", sa.Column("pauses_checks", sa.SmallInteger(), server_default="0", nullable=False))
