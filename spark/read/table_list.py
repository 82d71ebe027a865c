"""Which tables of the producers are compared, and how their databases are reached. Read once; no password is kept.

    {"databases": [{
      "name": "shop", "url": "jdbc:postgresql://db/shop", "user": "reader", "password_env": "SHOP_PASSWORD",
      "records": [{"table": "outbox_transaction", "groups": ["orders"]}],
      "rows": [{"table": "orders", "transaction_id": "transaction_id", "groups": ["orders"]},
               {"table": "invoices", "key": "number", "topic": "invoices.made", "at_ms": "created_ms"}]}]}

Names of tables and columns are SQL of the database they are in, as is `where`: quote what needs quotes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from spark.errors import BadUsage

# as in outbox/tables.py, of which this package imports nothing
RECORD_TABLE, WRITTEN, BARRED, CLEANED = "outbox_transaction", "written", "barred", "cleaned"
_RECORD_COLUMN, _RECORD_TIME = "transaction_id", "at_ms"

POSTGRESQL, SQLITE, MARIADB = "postgresql", "sqlite", "mariadb"
_SCHEMES = {"postgresql": POSTGRESQL, "sqlite": SQLITE, "mariadb": MARIADB, "mysql": MARIADB}
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,120}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PASSWORD = re.compile(r"(?i)pass|pwd|secret|//[^/?]*@")

_DATABASE_MEMBERS = {"name", "url", "user", "password_env", "password_file", "records", "rows"}
_RECORD_MEMBERS = {"table", "groups"}
_ROW_MEMBERS = {"table", "transaction_id", "key", "topic", "at_ms", "where", "groups", "shown", "kept_days"}


class JdbcLink(StrEnum):
    """What ties a table's rows to transactions."""

    RECORD = "record"  # a transaction record of `outbox`
    ID = "transaction_id"  # a column with the transaction's id
    KEY = "key"  # a column with a message's key


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `groups`: each of their committed transactions has a row here, for `kept_days` (None: for ever).

    `column`: id or key; `topic`: where the key's messages go; `at_ms`: when a row was written, in milliseconds;
    `shown`: what findings name a row by.
    """

    database: str
    name: str
    link: JdbcLink
    column: str
    topic: str | None = None
    at_ms: str | None = None
    where: str | None = None
    groups: tuple[str, ...] = ()
    shown: str | None = None
    kept_days: int | None = None

    @property
    def title(self) -> str:
        """How findings name it."""
        return f"{self.database}.{self.name}"

    @property
    def kin(self) -> tuple[str, str, str | None]:
        """Tables that are alike in this are one table, in several databases: a row is in any of them."""
        return (self.name, self.link, self.topic)


@dataclass(frozen=True, slots=True)
class JdbcDatabase:
    """A database and its tables. `password`: a name in the environment, or a file; looked up when it is needed."""

    name: str
    url: str
    kind: str
    tables: Sequence[Table]
    user: str | None = None
    password: str | Path | None = field(default=None)

    def read_password(self, environment: Mapping[str, str]) -> str | None:
        """Raises BadUsage, which names where it is not."""
        if self.password is None:
            return None
        if isinstance(self.password, str):
            if self.password not in environment:
                raise BadUsage(f"database {self.name}: {self.password} is not in the environment", "Set it.")
            return environment[self.password]
        try:
            return self.password.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadUsage(f"database {self.name}: cannot read {self.password}: {error}") from error


def parse_tables(document: Mapping[str, Any]) -> list[JdbcDatabase]:
    """The databases of a file as above. Raises BadUsage, which repeats no URL."""
    _check_members("the file of tables", document, {"databases"})
    listed = document.get("databases")
    if not isinstance(listed, list) or not listed:
        raise BadUsage("the file of tables names no databases", 'Begin with {"databases": [...]}.')
    databases = [_read_database(one, number) for number, one in enumerate(listed, start=1)]
    names = [database.name for database in databases]
    if len(set(names)) < len(names):
        raise BadUsage("two databases of the file of tables have one name")
    return databases


def kinds_of(databases: Collection[JdbcDatabase]) -> set[str]:
    """The kinds of databases, for each of which there is a driver."""
    return {database.kind for database in databases}


def _read_database(given: Any, number: int) -> JdbcDatabase:  # noqa: ANN401 - JSON
    what = f"database {number} of the file of tables"
    if not isinstance(given, Mapping):
        raise BadUsage(f"{what} is no object")
    _check_members(what, given, _DATABASE_MEMBERS)
    name, url = _text(given, "name", what), _text(given, "url", what)
    kind = _SCHEMES.get(url.removeprefix("jdbc:").partition(":")[0]) if url.startswith("jdbc:") else None
    if kind is None:
        raise BadUsage(f"database {name}: its url is of no database known here", "jdbc:postgresql:, sqlite:, mariadb:")
    if _PASSWORD.search(url):
        raise BadUsage(f"database {name}: its url holds a password", "Name it by password_env or password_file.")
    if "password_env" in given and "password_file" in given:
        raise BadUsage(f"database {name}: password_env and password_file at once")
    file = _optional_text(given, "password_file", what)
    tables = [
        *(_read_record(one, name) for one in _objects(given, "records", name)),
        *(_read_row(one, name) for one in _objects(given, "rows", name)),
    ]
    if not tables:
        raise BadUsage(f"database {name} has neither records nor rows")
    password = _optional_text(given, "password_env", what) if file is None else Path(file)
    return JdbcDatabase(name, url, kind, tables, _optional_text(given, "user", what), password)


def _read_record(given: Mapping[str, Any], database: str) -> Table:
    what = f"records of database {database}"
    _check_members(what, given, _RECORD_MEMBERS)
    name = _optional_text(given, "table", what) or RECORD_TABLE
    return Table(database, name, JdbcLink.RECORD, _RECORD_COLUMN, at_ms=_RECORD_TIME, groups=_groups(given, what))


def _read_row(given: Mapping[str, Any], database: str) -> Table:
    what = f"rows of database {database}"
    _check_members(what, given, _ROW_MEMBERS)
    name = _text(given, "table", what)
    if ("transaction_id" in given) is ("key" in given):
        raise BadUsage(f"{database}.{name}: either transaction_id or key names a column")
    link = JdbcLink.KEY if "key" in given else JdbcLink.ID
    if (link is JdbcLink.KEY) is not ("topic" in given):
        raise BadUsage(f"{database}.{name}: key and topic go together")
    if not _TOPIC.fullmatch(given.get("topic", "-")):
        raise BadUsage(f"{database}.{name}: topic is no name of a topic")
    if link is JdbcLink.KEY and "at_ms" not in given:
        raise BadUsage(f"{database}.{name}: by a key alone nobody knows when a row was written", "Give at_ms.")
    kept_days = given.get("kept_days")
    if kept_days is not None and (type(kept_days) is not int or kept_days < 2):
        raise BadUsage(f"{database}.{name}: kept_days is no number from 2")
    texts = {member: _optional_text(given, member, what) for member in ("topic", "at_ms", "where", "shown")}
    column = _text(given, link.value, what)
    return Table(database, name, link, column, **texts, groups=_groups(given, what), kept_days=kept_days)


def _objects(given: Mapping[str, Any], member: str, name: str) -> list[Mapping[str, Any]]:
    listed = given.get(member, [])
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        raise BadUsage(f"database {name}: {member} is no list of objects")
    return listed


def _groups(given: Mapping[str, Any], what: str) -> tuple[str, ...]:
    listed = given.get("groups", [])
    if not isinstance(listed, list) or not all(isinstance(one, str) and _GROUP.fullmatch(one) for one in listed):
        raise BadUsage(f"{what}: groups is no list of names of producer groups")
    return tuple(listed)


def _text(given: Mapping[str, Any], member: str, what: str) -> str:
    text = _optional_text(given, member, what)
    if text is None:
        raise BadUsage(f"{what} has no {member}")
    return text


def _optional_text(given: Mapping[str, Any], member: str, what: str) -> str | None:
    text = given.get(member)
    if text is not None and (not isinstance(text, str) or not text):
        raise BadUsage(f"{what}: {member} is no text")
    return text


def _check_members(what: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise BadUsage(f"{what}: {', '.join(unknown)} is unknown", f"Known are {', '.join(sorted(known))}.")
