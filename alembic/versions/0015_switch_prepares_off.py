"""Switch prepares of all groups off"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("accepts_prepares", sa.SmallInteger(), server_default="1", nullable=False)
    op.add_column("directory_version", column)
