"""Chain the audit"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_links",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_id", sa.BigInteger(), nullable=False),
        sa.Column("adopted_ms", sa.BigInteger(), nullable=True),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_audit_links"),
    )
    op.create_index("ix_audit_links_audit_id", "audit_links", ["audit_id"])
    op.create_table(
        "audit_turn",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_turn"),
    )
