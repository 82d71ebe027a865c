"""`relay`: what is wrong with its options, and what to do about it."""

import fcntl
import logging
import os
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.cli.output import Output
from api.cli.relay import RelayReport
from outbox.tables import make_lease_table, make_outbox_table
from tests.unit.cli.conftest import Cli


def write(folder: Path, text: str) -> str:
    file = folder / "map.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--database-url"),
        (["parked", "list"], "--database-url"),
        (["--database-url", "sqlite://"], "--producer-group"),
        (["--database-url", "no url", "-g", "shop", "--once"], "driver://user"),
        (["--database-url", "nobase://h/d", "-g", "shop", "--once"], "no driver"),
        (["--database-url", "mariadb+nodriver://h/d", "-g", "shop", "--once"], "pip install pymysql"),
        (["--database-url", "sqlite+aiosqlite://", "-g", "shop", "--once"], "asyncio"),
        (["--database-url", "sqlite://", "-g", "no group!", "--once"], "producer group's name"),
        (["--database-url", "sqlite://", "-g", "shop", "--bridge", "here", "--once"], "http(s)://"),
        (["--database-url", "sqlite://", "-g", "shop", "--source", "debezium", "--once"], "--sequence"),
        (["--database-url", "sqlite://", "-g", "shop", "--source", "nowhere.toml", "--once"], "nowhere.toml"),
        (["--database-url", "sqlite://", "-g", "shop", "--lease", "1", "--once"], "--lease"),
    ],
)
def test_wrong_use_is_told(cli: Cli, arguments: list[str], words: str) -> None:
    """Exit code 2, and the option that is wrong."""
    ended = cli("relay", *arguments)
    assert (ended.code, words in ended.err) == (2, True), ended.err


def test_missing_table_names_the_command_that_makes_it(cli: Cli) -> None:
    """For the database at hand."""
    ended = cli("relay", "--database-url", "sqlite://", "-g", "shop", "--once")
    assert (ended.code, "python -m outbox.ddl sqlite" in ended.err) == (1, True)


@pytest.mark.parametrize("option", ["--table", "--lease-table"])
def test_table_of_another_shape_is_told_at_the_start(cli: Cli, tmp_path: Path, option: str) -> None:
    """Otherwise each claim would fail, as if the database were away."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url)
    metadata = sa.MetaData()
    make_outbox_table(metadata)
    make_lease_table(metadata)
    sa.Table("events", metadata, sa.Column("id", sa.Integer))
    metadata.create_all(engine)
    engine.dispose()
    ended = cli("relay", "--database-url", url, "-g", "shop", "--once", option, "events")
    assert (ended.code, "events has no column" in ended.err) == (2, True), ended.err


def test_numbers_that_sqlite_uses_again_are_no_keys(cli: Cli, tmp_path: Path) -> None:
    """Of two rows with one key the bridge would publish the first alone."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata = sa.MetaData()
    make_lease_table(metadata)
    metadata.create_all(engine)
    with engine.begin() as conn:
        for name, key in (("again", "INTEGER PRIMARY KEY"), ("once", "integer primary key autoincrement")):
            conn.execute(sa.text(f"CREATE TABLE {name} (id {key}, topic TEXT, key TEXT, payload TEXT)"))
    engine.dispose()
    codes = {}
    for name in ("again", "once"):
        source = write(tmp_path, f'table = "{name}"')
        ended = cli("relay", "--database-url", str(engine.url), "-g", "shop", "--source", source, "--once")
        codes[name] = ended.code, "AUTOINCREMENT" in ended.err
    assert codes == {"again": (2, True), "once": (0, False)}


def test_unreachable_database_tells_no_password(cli: Cli) -> None:
    """Once: exit code 5."""
    url = "postgresql+psycopg://shop:hidden@127.0.0.1:1/shop"
    ended = cli("relay", "--database-url", url, "-g", "shop", "--once")
    assert (ended.code, "hidden" in ended.err + ended.out) == (5, False)


@pytest.mark.parametrize(
    "text",
    [
        "table = 1",
        "[columns]",
        'table = "t"\nother = "x"',
        'table = "t"\n[columns]\nother = "x"',
        'table = "t"\n[columns]\nkey = 1',
        'table = "t"\n[columns]\ntopic_format = "no place"',
        'table = "t"\n[columns]\ntopic_format = "{}-{}"',
        'table = "t"\n[columns]\ntopic_format = "{}-{0.x}"',
        'table = "t"\ncolumns = "x"',
        "no toml",
    ],
)
def test_wrong_file_is_told(cli: Cli, tmp_path: Path, text: str) -> None:
    """Unknown names are errors: a typing error would be read as a default."""
    ended = cli("relay", "--database-url", "sqlite://", "-g", "shop", "--source", write(tmp_path, text), "--once")
    assert (ended.code, "map.toml" in ended.err) == (2, True), ended.err


def test_relay_goes_on_where_nobody_reads_what_it_warns_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that publishes waited for a reader of the log that had stopped, for ever."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(writer, "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with RelayReport(Output.JSON).telling_warnings():
            for number in range(1_000):
                logging.getLogger("outbox.relay").warning("the bridge cannot be reached %d", number)
        with os.fdopen(reader, "rb") as lines:
            assert [next(lines) for _ in range(1_000)][-1] == b"the bridge cannot be reached 999\n"
