"""Short SQL transactions on threads, on both databases: nothing waits for ever, nothing is applied by halves."""

import asyncio
import os
import socket
import sqlite3
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy import Connection

from api.web.health import check_sql
from bridge.core.errors import ConfigError, SqlUnavailable
from bridge.sql.bulk import insert_rows
from bridge.sql.engine import Database, SqlConfig, translate_error, upgrade
from bridge.sql.tables import group_counts, leases, transaction_keys
from tests.support.socket_front import tcp_front

QUICK = SqlConfig(statement_timeout_ms=300, admission_timeout_ms=200, call_timeout_ms=5_000, threads=2)


@pytest_asyncio.fixture
async def quick(database_url: str) -> AsyncIterator[Database]:
    """A database with short time-outs."""
    opened = Database(database_url, QUICK)
    yield opened
    await opened.close()


def add_lease(conn: Connection, name: str = "a") -> None:
    conn.execute(sa.insert(leases).values(name=name, owner="me", until_ms=1))


def count_leases(conn: Connection) -> int:
    return int(conn.execute(sa.select(sa.func.count()).select_from(leases)).scalar_one())


async def test_work_is_applied_whole_or_not_at_all(database: Database) -> None:
    """An error in the middle takes everything back."""

    def fail(conn: Connection) -> None:
        add_lease(conn)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.run(fail)
    assert await database.read(count_leases) == 0
    await database.run(add_lease)
    assert await database.read(count_leases) == 1


def set_default(url: sa.URL, setting: str) -> None:
    """Of all sessions to come."""
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.exec_driver_sql(f'ALTER DATABASE "{url.database}" SET {setting}')
    admin.dispose()


_FULL = 2  # each commit is on the disk


@pytest.mark.parametrize(("found", "used"), [("off", "on"), ("remote_write", "remote_write")])
async def test_commits_are_durable_whatever_the_server_says(database_url: str, found: str, used: str) -> None:
    """A crash must not take back an audit entry whose act has happened, nor a key that was shown."""
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        opened = Database(database_url, QUICK)
        assert await opened.run(lambda conn: conn.exec_driver_sql("PRAGMA synchronous").scalar_one()) == _FULL
        await opened.close()
        return
    set_default(url, f"synchronous_commit = {found}")
    opened = Database(database_url, QUICK)
    assert await opened.run(lambda conn: conn.exec_driver_sql("SHOW synchronous_commit").scalar_one()) == used
    await opened.close()


async def test_writers_see_what_was_committed_meanwhile_whatever_the_server_says(database_url: str) -> None:
    """Else what is counted or looked up behind a lock is as it was before the lock, and one of many acts fails."""
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        return  # one writer at a time
    set_default(url, "default_transaction_isolation = 'serializable'")
    opened = Database(database_url, QUICK)

    def look_twice(conn: Connection) -> tuple[int, int]:
        first = count_leases(conn)
        with opened.engine.begin() as other:
            add_lease(other)
        return first, count_leases(conn)

    assert await opened.run(look_twice) == (0, 1)
    await opened.close()


async def test_transaction_of_many_statements_takes_its_time_whatever_the_server_says(empty_database_url: str) -> None:
    """Each is limited. A migration that made an index of many rows never came to its end, for a database that could not
    be reached, it was said."""
    url = sa.make_url(empty_database_url)
    if url.get_backend_name() != "sqlite":
        set_default(url, "transaction_timeout = '20ms'")
    upgrade(empty_database_url)
    opened = Database(empty_database_url, QUICK)
    if not opened.is_sqlite:
        await opened.run(lambda conn: conn.exec_driver_sql("SELECT pg_sleep(0.1)"))
        await opened.read(lambda conn: conn.exec_driver_sql("SELECT pg_sleep(0.1)"))
    assert await opened.read(count_leases) == 0
    await opened.close()


async def test_bytes_are_kept_whatever_the_server_says(database_url: str) -> None:
    """A message was not found by its key where backslashes escape in plain strings."""
    url, key = sa.make_url(database_url), b"a\\x\n\x00\xff'"
    if url.get_backend_name() != "sqlite":
        set_default(url, "standard_conforming_strings = off")
    opened = Database(database_url, QUICK)
    row = ("orders", 1, 1, 0, key)
    await opened.run(lambda conn: insert_rows(conn, transaction_keys, transaction_keys.c.keys(), [row]))
    assert await opened.read(lambda conn: conn.execute(sa.select(transaction_keys.c.message_key)).scalar()) == key
    await opened.close()


async def test_server_that_takes_no_writes_any_more_is_left(quick: Database) -> None:
    """Another has taken over, and connections to this one have outlived that: until a restart nothing was written."""
    if quick.is_sqlite:
        return  # a file has no server

    def demote(conn: Connection) -> None:
        conn.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")  # this connection's server

    await quick.run(demote)
    with pytest.raises(SqlUnavailable, match="read-only"):
        await quick.run(add_lease)
    await quick.run(add_lease)


async def test_many_at_once_all_get_their_turn(database: Database) -> None:
    """Writers wait for each other; nobody is refused for being busy."""
    await asyncio.gather(*[database.run(lambda conn, n=n: add_lease(conn, f"lease-{n}")) for n in range(40)])
    assert await database.read(count_leases) == 40


async def test_read_sees_one_state_whatever_is_committed_meanwhile(database: Database) -> None:
    """A look-up by id and one by key must not straddle a commit, or a repeat looks like another content."""

    def look_twice(conn: Connection) -> tuple[int, int]:
        first = count_leases(conn)
        with database.engine.begin() as other:
            add_lease(other)
        return first, count_leases(conn)

    assert await database.read(look_twice) == (0, 0)
    assert await database.read(count_leases) == 1


async def test_read_cannot_write(database: Database) -> None:
    """On either database."""
    with pytest.raises(SqlUnavailable):
        await database.read(add_lease)


async def test_errors_tell_no_values(database: Database) -> None:
    """Their text goes to logs and health, where keys and bodies have no business."""

    def select(conn: Connection) -> None:
        conn.execute(sa.text("SELECT no_such_function(:value)"), {"value": "a key of a user"})

    with pytest.raises(Exception, match="no_such_function") as caught:
        await database.run(select)
    assert "a key of a user" not in str(caught.value)


async def test_broken_constraint_is_no_outage(database: Database) -> None:
    """A bug must not look like a database that is away."""
    await database.run(add_lease)
    with pytest.raises(sa.exc.IntegrityError):
        await database.run(add_lease)


async def test_database_without_tables_names_the_remedy(empty_database_url: str) -> None:
    """Whoever starts without `migrate` is told so."""
    database = Database(empty_database_url)
    with pytest.raises(SqlUnavailable, match="migrate") as caught:
        await database.read(count_leases)
    assert not caught.value.retry_helps
    await database.close()


def test_driver_in_the_url_does_not_count(tmp_path: Path) -> None:
    """Services with asyncio have such URLs: the bridge's threads take a driver of their own."""
    upgrade(f"sqlite+aiosqlite:///{tmp_path / 'bridge.db'}")
    with closing(sqlite3.connect(tmp_path / "bridge.db")) as conn:
        assert conn.execute("SELECT count(*) FROM alembic_version").fetchall() == [(1,)]


async def test_slow_read_is_stopped(quick: Database) -> None:
    """A bad search does not hold a thread for ever (66)."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(SqlUnavailable, match="too long"):
        await quick.read(lambda conn: conn.execute(sa.text(endless)).scalar_one())
    assert await quick.read(count_leases) == 0


async def test_full_house_sends_callers_away_in_time(quick: Database) -> None:
    """Bounded waits, no pile-up; afterwards everything goes on (66)."""
    leave = threading.Event()
    inside = [threading.Event() for _ in range(QUICK.threads)]

    def stay(conn: Connection, event: threading.Event) -> None:
        event.set()
        leave.wait(5)

    staying = [asyncio.create_task(quick.read(lambda conn, e=event: stay(conn, e))) for event in inside]
    for event in inside:
        assert await asyncio.to_thread(event.wait, 5)
    with pytest.raises(SqlUnavailable, match="overloaded"):
        await quick.read(count_leases)
    leave.set()
    await asyncio.gather(*staying)
    assert await quick.read(count_leases) == 0


async def test_caller_who_leaves_does_not_free_a_busy_thread(quick: Database) -> None:
    """A cancelled request still occupies its thread until the work is done."""
    leave, inside = threading.Event(), threading.Event()

    def stay(conn: Connection) -> None:
        inside.set()
        leave.wait(5)

    staying = asyncio.create_task(quick.run(stay))
    assert await asyncio.to_thread(inside.wait, 5)
    staying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staying
    if quick.is_sqlite:
        with pytest.raises(SqlUnavailable, match="overloaded"):
            await quick.run(add_lease)
    leave.set()
    await quick.run(add_lease)
    assert await quick.read(count_leases) == 1


async def test_answer_that_does_not_come_is_an_unknown_outcome(database_url: str) -> None:
    """A database that hangs is given up; whether it worked is not known."""
    database = Database(database_url, SqlConfig(call_timeout_ms=100))
    leave = threading.Event()
    with pytest.raises(SqlUnavailable) as caught:
        await database.run(lambda conn: leave.wait(5))
    assert caught.value.is_outcome_unknown
    leave.set()
    await database.close()


async def test_closed_database_refuses(database_url: str) -> None:
    """No call hangs at the end of a process."""
    database = Database(database_url)
    await database.close()
    with pytest.raises(SqlUnavailable, match="closed"):
        await database.read(count_leases)


async def test_deadlock_is_repeated_until_it_works(database_url: str) -> None:
    """Two that wait for each other: the database ends one, and its work is run again (66)."""
    database = Database(database_url)
    if database.is_sqlite:
        return  # one writer at a time: there is nothing to wait for in a circle
    columns = ("committed", "blocked", "rolled_back", "parked")
    for name in ("a", "b"):
        row = {"producer_group": name, "prepared": 0, **dict.fromkeys(columns, 0)}
        await database.run(lambda conn, r=row: conn.execute(sa.insert(group_counts).values(r)))
    met = threading.Barrier(2)

    def add(conn: Connection, names: str) -> None:
        for place, name in enumerate(names):
            is_it = group_counts.c.producer_group == name
            conn.execute(sa.update(group_counts).where(is_it).values(prepared=group_counts.c.prepared + 1))
            if place == 0:
                with suppress(threading.BrokenBarrierError):  # the repetition is alone
                    met.wait(0.5)

    await asyncio.gather(database.run(lambda conn: add(conn, "ab")), database.run(lambda conn: add(conn, "ba")))
    counts = await database.read(lambda conn: conn.execute(sa.select(group_counts.c.prepared)).scalars().all())
    assert counts == [2, 2]
    await database.close()


async def test_two_processes_write_to_one_sqlite_file(database_url: str) -> None:
    """`serve` processes share the file: they wait for each other (SQLite), or do not notice (PostgreSQL)."""
    databases = [Database(database_url) for _ in range(2)]
    calls = [
        database.run(lambda conn, n=n, m=m: add_lease(conn, f"{n}-{m}"))
        for n, database in enumerate(databases)
        for m in range(20)
    ]
    await asyncio.gather(*calls)
    assert await databases[0].read(count_leases) == 40
    for database in databases:
        await database.close()


async def test_read_only_view_cannot_write_on_sqlite(database: Database) -> None:
    """A read that writes is a bug, found at once where the database can tell."""
    if database.is_sqlite:
        with pytest.raises(SqlUnavailable, match="read-only"):
            await database.read(add_lease)


async def test_server_out_of_reach_is_unavailable() -> None:
    """Nothing was applied, and trying again may help (65)."""
    database = Database("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(SqlUnavailable, match="cannot be reached") as caught:
        await database.run(add_lease)
    assert caught.value.retry_helps
    assert not caught.value.is_outcome_unknown
    await database.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_server_that_refuses_the_login_is_quoted(database_url: str) -> None:
    """Of a login the driver has no SQLSTATE: the server's own words are all that says why."""
    nobody = sa.make_url(database_url).set(username="nobody_here")
    for wrong, why in ((nobody, "nobody_here"), (nobody.set(database="nowhere_here"), "_here")):
        opened = Database(wrong.render_as_string(hide_password=False), QUICK)
        with pytest.raises(SqlUnavailable, match=f"the database cannot be reached: .*{why}.* does not exist"):
            await opened.read(count_leases)
        await opened.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_host_that_is_gone_is_noticed_while_its_answer_is_waited_for(database_url: str) -> None:
    """A thread waited for it two hours, the system's keepalive: four of them, and the database was "overloaded"."""
    url = sa.make_url(database_url)

    def read_option(conn: Connection, option: int) -> int:
        with socket.socket(fileno=os.dup(conn.connection.dbapi_connection.fileno())) as found:
            return found.getsockopt(socket.IPPROTO_TCP, option)

    with tcp_front(Path(str(url.query["host"])) / ".s.PGSQL.5432") as port:
        database = Database(url.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False))
        seconds = [
            await database.read(partial(read_option, option=option))
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        await database.close()
    assert seconds[0] + seconds[1] * seconds[2] <= 15


async def test_connection_cut_off_in_between_is_unavailable(database_url: str) -> None:
    """An administrator, or a fail-over, ends the session: nothing was applied, the next call works (66, 67)."""
    database = Database(database_url)
    if database.is_sqlite:
        return  # a file has no session

    def die(conn: Connection) -> None:
        add_lease(conn)
        conn.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(SqlUnavailable):
        await database.run(die)
    assert await database.read(count_leases) == 0
    await database.close()


async def test_connection_cut_off_before_many_rows_are_written_is_unavailable(database_url: str) -> None:
    """Rows that go past SQLAlchemy fail like all others, and the pool keeps no dead connection."""
    database = Database(database_url)
    if database.is_sqlite:
        return  # a file has no session

    def cut_off(conn: Connection) -> None:
        pid = conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with database.engine.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with conn.begin_nested():
            insert_rows(conn, leases, ("name", "owner", "until_ms"), [("a", "me", 1)])

    with pytest.raises(SqlUnavailable) as raised:
        await database.run(cut_off)
    assert not raised.value.is_outcome_unknown
    await database.run(add_lease)
    await database.close()


async def test_many_rows_break_constraints_and_miss_tables_like_one(database: Database) -> None:
    """Whichever way they are written; and their values are not in the text."""
    columns = ("name", "owner", "until_ms")
    await database.run(add_lease)
    with pytest.raises(sa.exc.IntegrityError) as caught:
        await database.run(lambda conn: insert_rows(conn, leases, columns, [("b", "x", 1), ("a", "of a user", 1)]))
    assert "of a user" not in str(caught.value)
    assert await database.read(count_leases) == 1
    await database.run(lambda conn: conn.execute(sa.text("DROP TABLE leases")))
    with pytest.raises(SqlUnavailable, match="migrate"):
        await database.run(lambda conn: insert_rows(conn, leases, columns, [("a", "me", 1)]))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "not a url"])
def test_unusable_url_is_a_setting_that_is_wrong(url: str) -> None:
    """Memory would be another database on each connection."""
    with pytest.raises(ConfigError):
        Database(url)


@pytest.mark.parametrize("url", ["postgresql://bridge:pass@word:geheim@db/b", "postgresql://b:geheim@h1:1,h2:2/geheim"])
def test_url_that_cannot_be_taken_apart_is_a_wrong_setting_and_not_shown(url: str) -> None:
    """A password with signs of its own is taken for a port, and must stand in no traceback."""
    with pytest.raises(ConfigError) as caught:
        Database(url)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def take_file_away(database: Database, other: Database | None) -> None:
    """And puts that of the other one in its place."""
    path = Path(str(database.url.database))
    path.unlink()
    if other is not None:
        Path(str(other.url.database)).rename(path)


@pytest.mark.parametrize("is_new", [False, True])
async def test_file_that_was_replaced_takes_nothing_any_more(make_sqlite_url: Callable[[], str], is_new: bool) -> None:
    """As by a backup that was copied back: what this process wrote would be in a file without a name, and lost."""
    database, other = Database(make_sqlite_url()), Database(make_sqlite_url())
    await database.run(add_lease)
    assert await database.read(count_leases) == 1
    take_file_away(database, other if is_new else None)
    for call in (database.run, database.read):
        with pytest.raises(SqlUnavailable, match="replaced under this process") as refused:
            await call(count_leases)
        assert not refused.value.retry_helps
        assert not refused.value.is_outcome_unknown
    assert not (await check_sql(database)).is_ok
    await database.close()
    await other.close()


@pytest.mark.parametrize("state", ["08000", "08006", "08007", "08P01", "57P01", "57P04", "57P05"])
@pytest.mark.parametrize("is_committing", [False, True])
def test_lost_connection_is_no_bug_whichever_way_it_is_told(state: str, is_committing: bool) -> None:
    """A proxy before the database says so itself, on a connection that is not closed yet."""
    orig = psycopg.errors.lookup(state)("lost")
    error = sa.exc.DBAPIError.instance("COMMIT", None, orig, psycopg.Error, hide_parameters=True)
    assert isinstance(error, sa.exc.DBAPIError)
    translated = translate_error(error, is_committing=is_committing)
    assert isinstance(translated, SqlUnavailable)
    assert (translated.retry_helps, translated.is_outcome_unknown) == (True, is_committing)
