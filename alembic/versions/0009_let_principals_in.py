"""Let principals in"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "access_version",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_access_version"),
    )
    op.create_table(
        "principals",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_principals"),
    )
    op.create_table(
        "grants",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("group_pattern", sa.Text(), nullable=False),
        sa.Column("topic_pattern", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "verb", "group_pattern", "topic_pattern", name="pk_grants"),
        sa.ForeignKeyConstraint(
            ["principal"], ["principals.name"], name="fk_grants_principal_principals", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_used_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
        sa.ForeignKeyConstraint(
            ["principal"], ["principals.name"], name="fk_api_keys_principal_principals", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_api_keys_principal", "api_keys", ["principal"])
