"""Find what ended long ago"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    over = sa.text("live = 0")
    op.create_index(
        "ix_transactions_ended", "transactions", ["queue_id", "ended_ms"], sqlite_where=over, postgresql_where=over
    )
