"""Keep what was abandoned"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("transactions", sa.Column("abandoned_ms", sa.BigInteger(), nullable=True))
    op.add_column("given_up", sa.Column("abandoned_ms", sa.BigInteger(), nullable=True))
    op.add_column("group_counts", sa.Column("abandoned", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index("ix_audit_target", "audit", ["target", "what"])
