"""Find what was abandoned"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    few = sa.text("abandoned_ms IS NOT NULL")
    op.create_index(
        "ix_transactions_abandoned", "transactions", ["born_ms", "id"], sqlite_where=few, postgresql_where=few
    )
