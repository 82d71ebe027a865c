"""A user's own project with Alembic: its models, its env.py, its history; the real command in processes of its own."""

import os
from pathlib import Path

from tests.support.process_pool import shared_pool

_MODELS = """
import sqlalchemy as sa
from outbox.tables import make_lease_table, make_outbox_table, make_record_table

metadata = sa.MetaData(naming_convention={convention!r})
sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(9)),
    sa.UniqueConstraint("name", name="uq_orders_name"),
)
make_record_table(metadata)
make_outbox_table(metadata)
make_lease_table(metadata)
"""


class AlembicProject:
    """As `alembic init` makes one. `convention`: names of constraints, as SQLAlchemy takes them."""

    def __init__(self, folder: Path, url: str, convention: dict[str, str]) -> None:
        self._folder = folder
        self.run("init", "history")
        (folder / "models.py").write_text(_MODELS.format(convention=convention))
        settings = folder / "alembic.ini"
        lines = settings.read_text().splitlines()
        written = "sqlalchemy.url = " + url.replace("%", "%%")
        settings.write_text("\n".join(written if line.startswith("sqlalchemy.url") else line for line in lines))
        env = folder / "history" / "env.py"
        env.write_text(
            env.read_text().replace("target_metadata = None", "from models import metadata as target_metadata")
        )

    def write_migration(self, upgrade: str, downgrade: str) -> None:
        """One by hand, the newest; statements of both directions."""
        self.run("revision", "-m", "by hand")
        (path,) = (self._folder / "history" / "versions").glob("*by_hand.py")
        head = path.read_text().partition("def upgrade")[0]
        body = f"def upgrade():\n    {upgrade}\n\n\ndef downgrade():\n    {downgrade}\n"
        path.write_text(f"import outbox.ddl as ddl\n{head}{body}")

    def run(self, *arguments: str) -> str:
        """What `alembic` writes to standard output. Raises AssertionError with all it says if it fails."""
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        run = shared_pool().run(["alembic", *arguments], environment, self._folder, 60)
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
        return run.stdout
