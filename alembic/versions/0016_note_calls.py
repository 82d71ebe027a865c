"""Let processes note how their calls to endpoints went"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("processes", sa.Column("calls", sa.Text(), nullable=True))
