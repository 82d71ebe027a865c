"""What the processes of a bridge note of themselves, and hear of each other."""

import re
import threading
from functools import partial

import pytest
import sqlalchemy as sa

from bridge.clock import SystemClock
from bridge.core.errors import SqlUnavailable
from bridge.core.topics import InternalTopics
from bridge.sql.engine import Database
from bridge.sql.identity import ProcessBoard
from bridge.sql.tables import processes
from tests.support.postgres import PostgresServer
from tests.support.virtual_time import VirtualClock


async def test_processes_that_differ_are_named_by_each(database: Database) -> None:
    """Clocks more than 5 s apart, and settings that all must share; alike, or alone, nothing is said."""
    clocks = [VirtualClock(SystemClock().now_ms()) for _ in range(3)]
    shared = {"topics.prefix": "", "limits.message_bytes": "1000"}
    others = [shared, shared, {**shared, "limits.message_bytes": "2000"}]
    boards = [ProcessBoard(database, clock, name) for clock, name in zip(clocks, "abc", strict=True)]
    for board, has in zip(boards, others, strict=True):
        board.share(has)
    for board in boards[:2] * 2:
        await board.run_once()
    assert [board.describe() for board in boards[:2]] == ["", ""]
    await clocks[1].advance(7_000)
    for board in boards * 2:
        await board.run_once()
    a, b, c = (board.describe() for board in boards)
    assert ("the clock of b is 7." in a or "the clock of b is 6.9" in a, "ahead of that of a" in a) == (True, True)
    assert "limits.message_bytes is '2000' in c, and '1000' in a" in a
    assert ("behind that of b" in b, "behind" in c, "ahead of that of c" in c) == (True, False, True)
    assert "topics.prefix" not in a + b + c


async def test_process_alone_with_its_clock_is_told(postgres: PostgresServer) -> None:
    """Where all processes have the clock of one machine none differs from another, and endpoints refuse their calls."""
    database = Database(postgres.create_migrated())
    try:
        now_ms = SystemClock().now_ms()
        told = dict[str, str]()
        for name, start_ms in {"behind": now_ms - 3_600_000, "ahead of": now_ms + 3_600_000, "": now_ms}.items():
            board = ProcessBoard(database, VirtualClock(start_ms), "a")
            board.share({}, ["settler", "projector"])
            await board.run_once()
            told[name] = re.sub(r"3[56]\d\d\.\d", "N", board.describe())
        assert told == {name: f"the clock of a is N s {name} that of the database" if name else "" for name in told}
    finally:
        await database.close()


async def test_role_that_no_process_has_is_told(database: Database) -> None:
    """A bridge without a settler takes prepares and answers none of their ends; one that has gone is missed soon. One
    of an older version does not say what it does, so nothing is said of it."""
    clock = VirtualClock(SystemClock().now_ms())
    boards = {role: ProcessBoard(database, clock, role) for role in ("api", "settler", "projector")}
    for role, board in boards.items():
        board.share({}, [role])
    api = boards["api"]
    await api.run_once()
    assert ("role settler" in api.describe(), "role projector" in api.describe()) == (True, True)
    for role in ("settler", "projector", "api"):
        await boards[role].run_once()
    assert api.describe() == ""
    await database.run(lambda conn: conn.execute(sa.delete(processes).where(processes.c.owner == "settler")))
    await api.run_once()
    assert ("role settler" in api.describe(), "role projector" in api.describe()) == (True, False)
    await ProcessBoard(database, clock, "older").run_once()
    await api.run_once()
    assert api.describe() == ""


async def test_queue_that_no_settler_holds_is_told(database: Database) -> None:
    """As where another program of the same consumer group has it: what is pending there waits for ever, and nothing
    lags (T). Not while it changes hands, nor where a settler of an older version does not say what it holds."""
    clock, topics = VirtualClock(SystemClock().now_ms()), InternalTopics(queues=3)
    held: dict[str, list[int]] = {"one": [0], "two": [1, 2], "api": []}
    boards = {name: ProcessBoard(database, clock, name) for name in held}
    for name, board in boards.items():
        board.share({}, ["api"] if name == "api" else ["settler", "projector"])
        board.watch_queues(topics, partial(held.__getitem__, name))

    async def look(seconds: int) -> str:
        for _ in range(seconds // 10):
            await clock.advance(10_000)
            clock.shift_wall_clock(-10_000)
            for name in ("one", "two", "api"):
                await boards[name].run_once()
        told = {board.describe() for board in boards.values()}
        assert len(told) == 1
        return told.pop()

    assert await look(100) == ""
    held["two"].remove(1)
    assert await look(50) == ""
    told = await look(40)
    assert told.startswith("no settler holds queue 1: nothing of it is published, rolled back or checked")
    assert "or a settler with a copy of this database, may have it" in told
    assert f"the consumer group {topics.group}, or a settler" in await look(10)
    held["one"].append(1)
    assert await look(20) == ""
    held["one"].clear()
    assert "queue 0, 1:" in await look(90)
    older = ProcessBoard(database, clock, "older")
    older.share({}, ["settler"])
    await older.run_once()
    await boards["api"].run_once()
    assert boards["api"].describe() == ""


async def test_queue_is_not_missed_while_nobody_can_look(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settler that had just begun held none yet. Where the database then goes away, the queues are settled all the
    same, and nobody should look for another program that has them."""
    clock, held = VirtualClock(SystemClock().now_ms()), list[int]()
    board = ProcessBoard(database, clock, "a")
    board.share({}, ["settler", "projector"])
    board.watch_queues(InternalTopics(queues=1), lambda: held)
    await board.run_once()
    held.append(0)

    async def refuse(*_: object) -> None:
        raise SqlUnavailable("the database does not answer")

    with monkeypatch.context() as away:
        away.setattr(database, "run", refuse)
        for _ in range(10):
            with pytest.raises(SqlUnavailable):
                await board.run_once()
            await clock.advance(10_000)
            clock.shift_wall_clock(-10_000)
        assert board.describe() == ""
    held.clear()
    await board.run_once()
    assert board.describe() == ""


async def test_others_are_not_missed_after_the_database_was_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not note themselves either; whoever looks first must not tell that nobody settles."""
    clock = VirtualClock(SystemClock().now_ms())
    api, settler = ProcessBoard(database, clock, "api"), ProcessBoard(database, clock, "settler")
    api.share({}, ["api"])
    settler.share({}, ["settler", "projector"])
    await settler.run_once()
    await api.run_once()

    async def refuse(*_: object) -> None:
        raise SqlUnavailable("the database does not answer")

    with monkeypatch.context() as away:
        away.setattr(database, "run", refuse)
        with pytest.raises(SqlUnavailable):
            await api.run_once()
    older = {"seen_ms": processes.c.seen_ms - 60_000}
    await database.run(lambda conn: conn.execute(sa.update(processes).values(older)))
    await api.run_once()
    assert (api.describe(), api.failure) == ("", "")
    await api.run_once()
    assert "no process has the role settler" in api.describe()


async def test_process_hears_of_the_calls_that_others_make(database: Database) -> None:
    """Those of settlers, which a page of an api shows; one of an older version tells nothing."""
    clock, told = VirtualClock(), {"shop": [2, 5, 1]}
    api = ProcessBoard(database, clock, "api")
    settlers = [ProcessBoard(database, clock, name, lambda: told) for name in ("one", "two")]
    for board in (*settlers, api):
        await board.run_once()
    assert api.calls_of("shop") == [[2, 5, 1]] * 2
    assert (api.calls_of("bank"), settlers[0].calls_of("shop")) == ([], [])
    is_older = processes.c.owner == "one"
    await database.run(lambda conn: conn.execute(sa.update(processes).where(is_older).values(calls=None)))
    await api.run_once()
    assert api.calls_of("shop") == [[2, 5, 1]]


async def test_calls_are_noted_where_they_are_counted(database: Database) -> None:
    """In the event loop: while SQL's thread reads them, another group may be counted for the first time."""
    seen: list[threading.Thread] = []

    def note() -> dict[str, list[int]]:
        seen.append(threading.current_thread())
        return {}

    await ProcessBoard(database, VirtualClock(), "one", note).run_once()
    assert seen == [threading.current_thread()]
