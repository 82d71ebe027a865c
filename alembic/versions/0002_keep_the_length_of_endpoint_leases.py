"""Keep the length of endpoint leases"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("lease_ms", sa.BigInteger(), nullable=True))
