"""The file of tables: what is understood, what is refused, and that no password is repeated."""

from pathlib import Path
from typing import Any

import pytest

from spark.errors import BadUsage
from spark.read.table_list import MARIADB, POSTGRESQL, SQLITE, JdbcLink, Table, kinds_of, parse_tables

RECORDS = {"table": "outbox_transaction", "groups": ["orders"]}


def database(**members: Any) -> dict[str, Any]:
    """One database, and members that are otherwise."""
    return {"name": "shop", "url": "jdbc:postgresql://db/shop", "records": [RECORDS], **members}


def parse(*databases: Any) -> Any:
    return parse_tables({"databases": list(databases)})


def test_everything_that_can_be_said_is_understood() -> None:
    """Records under their own name, rows by id, rows by key; three kinds of databases."""
    row = {"table": "orders", "key": "id", "topic": "o", "at_ms": "at", "where": "x", "shown": "id", "kept_days": 30}
    databases = parse(
        database(records=[{}], rows=[{"table": "orders", "transaction_id": "tx", "groups": ["a", "b"]}, row]),
        database(name="file", url="jdbc:sqlite:/shop.db"),
        database(name="old", url="jdbc:mysql://db/shop"),
    )
    assert kinds_of(databases) == {POSTGRESQL, SQLITE, MARIADB}
    assert list(databases[0].tables) == [
        Table("shop", "outbox_transaction", JdbcLink.RECORD, "transaction_id", at_ms="at_ms"),
        Table("shop", "orders", JdbcLink.ID, "tx", groups=("a", "b")),
        Table("shop", "orders", JdbcLink.KEY, "id", "o", "at", "x", (), "id", 30),
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (database(url="jdbc:oracle:x"), "its url is of no database"),
        (database(url="postgresql://db/shop"), "its url is of no database"),
        (database(url="jdbc:postgresql://db/shop?password=hunter2"), "its url holds a password"),
        (database(url="jdbc:mariadb://me:hunter2@db/shop"), "its url holds a password"),
        (database(password="hunter2"), "password is unknown"),
        (database(password_env="A", password_file="b"), "password_env and password_file at once"),
        (database(records=[]), "neither records nor rows"),
        (database(records=[{"groups": ["a'b"]}]), "no list of names of producer groups"),
        (database(rows=[{"table": "o"}]), "either transaction_id or key"),
        (database(rows=[{"table": "o", "transaction_id": "a", "key": "b"}]), "either transaction_id or key"),
        (database(rows=[{"table": "o", "key": "b", "at_ms": "c"}]), "key and topic go together"),
        (database(rows=[{"table": "o", "key": "b", "topic": "t"}]), "by a key alone"),
        (database(rows=[{"table": "o", "key": "b", "topic": "t'", "at_ms": "c"}]), "no name of a topic"),
        (database(rows=[{"table": "o", "transaction_id": "a", "kept_days": 1}]), "kept_days"),
        (database(rows=[{"transaction_id": "a"}]), "has no table"),
        (database(rows={}), "no list of objects"),
        ("shop", "is no object"),
    ],
)
def test_what_cannot_be_is_refused(given: Any, reason: str) -> None:
    """A typing error must not compare nothing; a password in the file is not repeated."""
    with pytest.raises(BadUsage) as raised:
        parse(given)
    assert reason in raised.value.reason
    assert "hunter2" not in raised.value.reason + raised.value.remedy


@pytest.mark.parametrize("document", [{}, {"databases": []}, {"databases": {}}, {"database": [database()]}])
def test_file_without_databases_is_refused(document: dict[str, Any]) -> None:
    """Else nothing would be compared, and nobody told."""
    with pytest.raises(BadUsage):
        parse_tables(document)
    with pytest.raises(BadUsage, match="one name"):
        parse(database(), database())


def test_password_is_looked_up_where_it_is_said_to_be(tmp_path: Path) -> None:
    """In the environment or a file, when it is needed; a missing one is named, and nothing else."""
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    (by_name, by_file, none) = parse(
        database(password_env="SHOP"), database(name="b", password_file=str(file)), database(name="c")
    )
    assert by_name.read_password({"SHOP": "hunter2"}) == by_file.read_password({}) == "hunter2"
    assert none.read_password({}) is None
    assert "hunter2" not in repr((by_name, by_file))
    file.unlink()
    for one, name in ((by_name, "SHOP"), (by_file, str(file))):
        with pytest.raises(BadUsage, match=name):
            one.read_password({})
