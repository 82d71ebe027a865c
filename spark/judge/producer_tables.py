"""The producers' own tables, read by JDBC: once before the window's ends are noted, once after. Why: `row_rules`.

Landed are ids, hashes of keys, states, times, and what findings are to name a row by; nothing else is selected.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark.errors import BadUsage, Indeterminate, explain
from spark.judge.findings import CLEARED, FINDINGS_FILE, Finding, decode_findings
from spark.judge.judging import FIRST, MARGIN_MS, SECOND, Compared, compare_rows
from spark.judge.rules import FindingKind
from spark.read.envelope import ID_PATTERN, Evidence, Scope, key_hash
from spark.read.events import CARRY
from spark.read.sources import read_landed
from spark.read.table_list import CLEANED, MARIADB, POSTGRESQL, SQLITE, JdbcDatabase, JdbcLink, Table
from spark.read.window import WINDOW_FILE, read_window

ROW_SCHEMA = "source INT, tx STRING, key BIGINT, state STRING, at_ms BIGINT, shown STRING"
_LISTED = "tables.json"  # of a run's folder: what was compared
# databases have types of their own, and SQLite's INTEGER is wider than JDBC's
_JDBC_TYPES = "link STRING, state STRING, at_ms BIGINT, shown STRING, low BIGINT, high BIGINT"
_PIECES = 8  # of a table whose rows have times: so no executor gets it in one piece
_FETCHED = "5000"  # rows at a time; without it PostgreSQL's driver holds all of them
_COLUMN = re.compile(r'[A-Za-z_][\w.]*|"[^"]+"|`[^`]+`')
_DRIVERS: Mapping[str, Mapping[str, str]] = {
    POSTGRESQL: {"driver": "org.postgresql.Driver", "readOnly": "true", "connectTimeout": "10"},
    SQLITE: {"driver": "org.sqlite.JDBC", "open_mode": "1", "busy_timeout": "10000"},
    MARIADB: {"driver": "org.mariadb.jdbc.Driver", "connectTimeout": "10000"},
}

Tell = Callable[[str], None]


class ProducerTables:
    """The tables of a run, in whose folder their rows are kept while they are compared."""

    def __init__(self, spark: SparkSession, databases: Sequence[JdbcDatabase], folder: Path, last: Path | None) -> None:
        """`last`: the folder of the run that this one goes on from. Raises BadUsage."""
        self._spark = spark
        self._sources = [(database, table) for database in databases for table in database.tables]
        self._folder = folder
        self._since_ms = 0 if last is None else self._find_since_ms(last)

    def read_first(self, tell: Tell) -> None:
        """Before the window's ends are noted. Raises BadUsage, Indeterminate."""
        (self._folder / _LISTED).write_text(self._list(), encoding="utf-8")
        for number, (database, table) in enumerate(self._sources):
            self._land(number, database, table, FIRST)
        found = self._read(FIRST).groupBy("source").agg({"*": "count", "tx": "count"}).collect()
        counts = {row.source: (row["count(1)"], row["count(tx)"]) for row in found}
        for number, (_, table) in enumerate(self._sources):
            rows, named = counts.get(number, (0, 0))
            if rows and not named and table.link is not JdbcLink.KEY:
                raise BadUsage(f"{table.title}: column {table.column} holds no transaction ids", "Name the right one.")
            tell(f"{table.title}: {rows:,} rows")

    def judge(self, scope: Scope, before: Sequence[Path], *, is_read_first: bool) -> list[Finding]:
        """After the window was folded. `before`, `is_read_first`: see `compare_rows`. Raises Indeterminate."""
        compared = self._read_again()
        findings = compare_rows(self._spark, compared, scope, before, is_read_first=is_read_first)
        for name in (FIRST, SECOND):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        return findings

    def _find_since_ms(self, last: Path) -> int:
        """What was written before was compared by the last run, or belongs to no transaction that is looked at now.

        0: all is read again, because other tables were compared, or because what did not agree must not be lost.
        """
        path = last / _LISTED
        if not path.exists() or path.read_text(encoding="utf-8") != self._list():
            return 0
        findings = decode_findings((last / FINDINGS_FILE).read_text(encoding="utf-8"))
        if any(one.kind == FindingKind.TABLE_MISMATCH and one.state != CLEARED for one in findings):
            return 0
        taken_ms = read_window(last / WINDOW_FILE).taken_ms
        carried = (
            read_landed(self._spark, last / CARRY).where(f"leg = {Evidence.HALF}").selectExpr("MIN(ms) AS ms").first()
        )
        oldest_ms = taken_ms if carried is None or carried.ms is None else min(taken_ms, carried.ms)
        return max(0, oldest_ms - MARGIN_MS)

    def _list(self) -> str:
        """The tables, without how they are reached."""
        listed = [[table.title, table.link, table.column, table.where, table.groups] for _, table in self._sources]
        return json.dumps(listed, indent=1) + "\n"

    def _read_again(self) -> Compared:
        """What must have a row is looked for in what is there now."""
        horizons: dict[int, int] = {}
        asked = {table.kin for _, table in self._sources if table.groups}
        for number, (database, table) in enumerate(self._sources):
            if table.kin in asked:
                self._land(number, database, table, SECOND)
                if table.link is JdbcLink.RECORD:  # last: what was deleted meanwhile is before the horizon
                    horizons[number] = self._read_horizon(database, table)
        self._read(FIRST).createOrReplaceTempView(FIRST)
        self._read(SECOND).createOrReplaceTempView(SECOND)
        return Compared([table for _, table in self._sources], self._since_ms, horizons)

    def _read(self, name: str) -> DataFrame:
        path = self._folder / name
        if not path.exists():
            return self._spark.createDataFrame([], ROW_SCHEMA)
        return self._spark.read.schema(ROW_SCHEMA).parquet(str(path))

    def _land(self, number: int, database: JdbcDatabase, table: Table, name: str) -> None:
        query = _query(table, self._since_ms)
        with _told(table.title):
            pieces = self._divide(database, table, query)
            rows = self._load(database, query, pieces)
            landed = rows.selectExpr(*_landed_columns(number, table, rows.columns))
            landed.write.mode("append").parquet(str(self._folder / name))

    def _divide(self, database: JdbcDatabase, table: Table, query: str) -> Mapping[str, str]:
        """Options for reading it in pieces; none where that would read it all for each piece."""
        if table.at_ms is None or not _COLUMN.fullmatch(table.at_ms):
            return {}
        ends = self._load(database, f"SELECT MIN(at_ms) AS low, MAX(at_ms) AS high FROM ({query}) AS rows_read")
        row = ends.first()
        if row is None or row.low is None or row.low == row.high:
            return {}
        bounds = {"lowerBound": str(row.low), "upperBound": str(row.high + 1)}
        return {"partitionColumn": "at_ms", "numPartitions": str(_PIECES), **bounds}

    def _read_horizon(self, database: JdbcDatabase, table: Table) -> int:
        """Up to when records may have been deleted."""
        with _told(table.title):
            query = f"SELECT at_ms FROM {table.name} WHERE state = '{CLEANED}'"
            return max((row.at_ms for row in self._load(database, query).collect()), default=0)

    def _load(self, database: JdbcDatabase, query: str, pieces: Mapping[str, str] | None = None) -> DataFrame:
        options = {
            **_DRIVERS[database.kind],
            "url": _url_of(database),
            "dbtable": f"({query}) AS landed",
            "customSchema": _JDBC_TYPES,
            "fetchsize": _FETCHED,
            **(pieces or {}),
        }
        if database.user is not None:
            options["user"] = database.user
        password = database.read_password(os.environ)
        if password is not None:
            options["password"] = password
        return self._spark.read.format("jdbc").options(**options).load()


@contextmanager
def _told(title: str) -> Iterator[None]:
    """Errors of the database name the table."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise Indeterminate(f"{title} cannot be read: {explain(error)}", "Nothing is judged without it.") from error


def _url_of(database: JdbcDatabase) -> str:
    """Of MariaDB as Spark knows it: under its own scheme, Spark would quote columns as it quotes texts."""
    if database.kind == SQLITE:
        file = Path(database.url.removeprefix("jdbc:sqlite:").partition("?")[0])
        if not file.is_file():  # the driver would make an empty one
            raise BadUsage(f"database {database.name}: {file} is no file")
    if database.kind != MARIADB:
        return database.url
    address = database.url.removeprefix("jdbc:").partition(":")[2]
    return f"jdbc:mysql:{address}{'&' if '?' in address else '?'}permitMysqlScheme"


def _query(table: Table, since_ms: int) -> str:
    """The table's rows in its database's SQL; columns: link, and where they are known state, at_ms, shown."""
    columns = {"link": table.column, "at_ms": table.at_ms, "shown": table.shown}
    wanted = [f"{table.column} IS NOT NULL"]
    if table.link is JdbcLink.RECORD:
        columns["state"] = "state"
        wanted.append(f"state <> '{CLEANED}'")
    if table.where is not None:
        wanted.append(f"({table.where})")
    if table.at_ms is not None and since_ms:
        late = f"{table.at_ms} >= {since_ms}"
        wanted.append(late if table.link is JdbcLink.RECORD else f"({late} OR {table.at_ms} IS NULL)")
    listed = ", ".join(f"{column} AS {name}" for name, column in columns.items() if column is not None)
    return f"SELECT {listed} FROM {table.name} WHERE {' AND '.join(wanted)}"


def _landed_columns(number: int, table: Table, known: Collection[str]) -> list[str]:
    """Of `ROW_SCHEMA`, in its order."""
    given = {
        "source": str(number),
        "tx": "NULL" if table.link is JdbcLink.KEY else f"IF(trim(link) RLIKE {ID_PATTERN}, trim(link), NULL)",
        "key": key_hash("CAST(link AS BINARY)") if table.link is JdbcLink.KEY else "NULL",
        **{name: name if name in known else "NULL" for name in ("state", "at_ms", "shown")},
    }
    types = dict(column.split() for column in ROW_SCHEMA.split(", "))
    return [f"CAST({given[name]} AS {kind}) AS {name}" for name, kind in types.items()]
