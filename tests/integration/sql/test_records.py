"""Groups, rounds, counts, audit, redrive jobs, leases and identity, on both databases."""

import asyncio
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from random import Random
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.core.transaction import make_transaction_id
from bridge.directory import DEFAULT_SETTINGS, UnansweredRound
from bridge.sql.access import ActEntry, read_audit
from bridge.sql.bulk import insert_rows
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.groups import GroupDeletion, read_group
from bridge.sql.identity import TopicIdentity, read_identity, record_identity
from bridge.sql.leases import LeaseWatch, release_lease, take_lease
from bridge.sql.projection import clear_projection
from bridge.sql.redrive import JobState, RedriveJob, advance_job, claim_job, create_job, find_job, list_jobs, stop_job
from bridge.sql.rows import (
    ALL_COLUMNS,
    AppliedPosition,
    LogIdentity,
    MalformedCursor,
    all_values,
    begin_position,
    make_row,
    move_position,
    read_positions,
)
from bridge.sql.search import AGE_BOUNDS_S, add_pending, count_ages, cover, read_stats, recount_pending
from bridge.sql.tables import audit, endpoints, group_counts, pending_ages, transactions
from bridge.sql.transactions import find_many, read_timeline
from checker.call import sign_call
from outbox.client.checks import SignatureVerifier
from tests.support.held_database import HeldDatabase
from tests.support.virtual_time import VirtualClock

HOUR_MS = 3_600_000
URL = "https://shop/check"


@pytest.fixture
def clock() -> VirtualClock:
    """Time that moves when it is told to."""
    return VirtualClock()


@pytest_asyncio.fixture
async def directory(database: Database, clock: VirtualClock) -> AsyncIterator[SqlDirectory]:
    """A directory that has read the empty database."""
    opened = SqlDirectory(database, clock)
    await opened.refresh()
    yield opened


async def test_secret_is_told_once_and_signs(directory: SqlDirectory) -> None:
    """A put that creates tells it; a put that replaces does not."""
    put = await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    assert put.is_created
    assert put.secret is not None
    assert put.secret.startswith("whsec_")
    assert await directory.put_group("shop", DEFAULT_SETTINGS, []) == (False, None)
    group = directory.get("shop")
    assert group is not None
    assert (list(group.endpoints), list(group.secrets)) == ([], [put.secret])


async def test_old_secret_signs_for_a_day_more(directory: SqlDirectory, clock: VirtualClock) -> None:
    """Receivers change over without a gap (77), also if it is rotated again on the same day."""
    first = (await directory.put_group("shop", DEFAULT_SETTINGS, [])).secret
    second = await directory.rotate_secret("shop")
    assert secrets_of(directory) == [second, first]
    clock.shift_wall_clock(HOUR_MS)
    third = await directory.rotate_secret("shop")
    assert secrets_of(directory) == [third, second, first]
    clock.shift_wall_clock(23 * HOUR_MS)
    await directory.refresh()
    assert secrets_of(directory) == [third, second]
    clock.shift_wall_clock(HOUR_MS)
    await directory.refresh()
    assert secrets_of(directory) == [third]
    assert await directory.rotate_secret("nobody") is None


async def test_old_secret_signs_again_once_a_clock_that_was_ahead_is_set_back(
    directory: SqlDirectory, clock: VirtualClock
) -> None:
    """Nothing in the database changes by it; endpoints that know the old one alone would refuse all calls."""
    first = (await directory.put_group("shop", DEFAULT_SETTINGS, [])).secret
    second = await directory.rotate_secret("shop")
    clock.shift_wall_clock(48 * HOUR_MS)
    await directory.refresh()
    assert secrets_of(directory) == [second]
    clock.shift_wall_clock(-48 * HOUR_MS)
    await directory.refresh()
    assert secrets_of(directory) == [second, first]


async def test_so_many_secrets_sign_as_receivers_take(directory: SqlDirectory) -> None:
    """Whoever rotates in a circle gets the newest; calls do not grow without end, and the others are forgotten."""
    made = [(await directory.put_group("shop", DEFAULT_SETTINGS, [])).secret]
    made += [await directory.rotate_secret("shop") for _ in range(20)]
    signing = secrets_of(directory)
    assert signing == made[:-17:-1]
    headers = sign_call(signing, "msg_1", 0, "{}")
    assert headers is not None
    SignatureVerifier([str(made[5])]).verify(headers, b"{}", 0)


def secrets_of(directory: SqlDirectory) -> list[str]:
    group = directory.get("shop")
    assert group is not None
    return list(group.secrets)


async def test_first_prepare_makes_a_group_without_secret_once(directory: SqlDirectory, database: Database) -> None:
    """Two processes at once make one group; a later put keeps it."""
    other = SqlDirectory(database, VirtualClock())
    made, again = await directory.ensure_group("shop"), await other.ensure_group("shop")
    assert (made.settings, list(made.endpoints), list(made.secrets)) == (DEFAULT_SETTINGS, [], [])
    assert again == made
    assert directory.get("shop") == made
    assert not (await directory.put_group("shop", DEFAULT_SETTINGS, [URL])).is_created


async def test_change_by_another_process_is_seen_after_a_refresh(directory: SqlDirectory, database: Database) -> None:
    """Revoked or added: within a second everywhere, without restart."""
    other = SqlDirectory(database, VirtualClock())
    await other.put_group("shop", GroupSettings(CheckTimes(max_checks=3)), [URL])
    assert directory.get("shop") is None
    await directory.refresh()
    assert directory.settings_of("shop").times.max_checks == 3
    await other.delete_group("shop")
    await directory.refresh()
    assert directory.get("shop") is None


async def test_change_is_not_taken_back_by_a_look_that_began_before(database: Database) -> None:
    """Which had read the group as it was: its prepares go on as paused, also if the database goes away then."""
    held = HeldDatabase(database.url.render_as_string(hide_password=False))
    directory = SqlDirectory(held, VirtualClock())
    look = asyncio.create_task(directory.refresh())
    await held.has_read.wait()
    await directory.put_group("shop", replace(DEFAULT_SETTINGS, accepts_prepares=False), [])
    held.goes_on.set()
    await look
    assert not directory.settings_of("shop").accepts_prepares
    await held.close()


async def test_first_check_comes_sooner_where_that_is_set(database: Database, clock: VirtualClock) -> None:
    """In groups that have the usual timeout, made before or by a prepare; not where a group has its own."""
    directory = SqlDirectory(database, clock, check_after_ms=1_000)
    await directory.put_group("patient", GroupSettings(CheckTimes(transaction_timeout_ms=60_000)), ())
    await directory.put_group("usual", GroupSettings(), ())
    made = await directory.ensure_group("made")
    names = ("patient", "usual", "made", "unknown")
    assert [directory.settings_of(name).times.transaction_timeout_ms for name in names] == [60_000, 1_000, 1_000, 1_000]
    assert made.settings.times.transaction_timeout_ms == 1_000
    assert await database.read(lambda conn: read_group(conn, "made", 0, [])) == replace(made, settings=GroupSettings())


async def test_unchanged_directory_is_not_read_again(directory: SqlDirectory) -> None:
    """A refresh costs one row as long as nothing happens."""
    await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    before = directory.groups
    await directory.refresh()
    assert directory.groups is before


async def test_leased_endpoints_survive_a_put(directory: SqlDirectory, database: Database) -> None:
    """A put replaces what was configured, not who is alive."""
    await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    leased = {"producer_group": "shop", "url": "https://live", "is_leased": True, "lease_until_ms": 5}
    await database.run(lambda conn: conn.execute(sa.insert(endpoints).values(leased)))
    await directory.put_group("shop", DEFAULT_SETTINGS, ["https://new"])
    group = directory.get("shop")
    assert group is not None
    assert sorted((e.url, e.is_leased) for e in group.endpoints) == [("https://live", True), ("https://new", False)]


async def test_group_in_use_is_not_deleted(directory: SqlDirectory, database: Database) -> None:
    """Somebody would have to be asked about what is pending (409)."""
    await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    row = make_row("0" * 28, "shop", 0, 1, 1)
    await database.run(lambda conn: insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row)]))
    entry = ActEntry(1, "ann", "delete", "shop")
    assert await directory.delete_group("shop", entry) is GroupDeletion.IN_USE
    await database.run(lambda conn: conn.execute(sa.delete(transactions)))
    assert await directory.delete_group("shop", entry) is GroupDeletion.DELETED
    assert await directory.delete_group("shop", entry) is GroupDeletion.UNKNOWN
    assert (await database.read(lambda conn: read_audit(conn, 10)))[0] == [entry]


async def test_unanswered_rounds_are_added_up_in_timeline_and_health(
    directory: SqlDirectory, database: Database
) -> None:
    """A group that is down for a day leaves one line, not thousands."""
    await directory.put_group("shop", DEFAULT_SETTINGS, [URL])
    row = make_row("0" * 28, "shop", 0, 1, 1)
    await database.run(lambda conn: insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row)]))
    for at_ms in (10, 20, 30):
        await directory.record_rounds([UnansweredRound("0" * 28, "shop", at_ms, "status 404", URL, f"no {at_ms}")])
    await directory.record_rounds([UnansweredRound("0" * 28, "shop", 40, "no-endpoint", None)])
    _, refused, missing = await database.read(lambda conn: read_timeline(conn, "0" * 28))
    assert refused.type == missing.type == "check_unanswered"
    assert (refused.members["first_ms"], refused.members["last_ms"], refused.members["count"]) == (10, 30, 3)
    assert refused.members["failure"] == "status 404"
    assert missing.members["failure"] == "no-endpoint"
    health = await directory.read_health("shop")
    assert health is not None
    assert [(h.endpoint.url, h.unanswered, h.last_failure) for h in health.endpoints] == [
        ("", 1, "no-endpoint"), (URL, 3, "status 404: no 30"),
    ]  # fmt: skip
    assert await directory.read_health("nobody") is None


async def test_results_of_an_endpoint_with_a_query_are_its_own(directory: SqlDirectory) -> None:
    """They are kept without the query, which may hold secrets; one that left is shown without it."""
    await directory.put_group("shop", DEFAULT_SETTINGS, [f"{URL}?token=s3cret"])
    rounds = [UnansweredRound("a" * 28, "shop", 1, "timeout", place) for place in (URL, "https://gone/check")]
    await directory.record_rounds(rounds)
    health = await directory.read_health("shop")
    assert health is not None
    shown = [(one.endpoint.url, one.unanswered) for one in health.endpoints]
    assert shown == [("https://gone/check", 1), (f"{URL}?token=s3cret", 1)]


async def test_audit_hides_queries_of_urls(directory: SqlDirectory, database: Database) -> None:
    """They may hold tokens. Also those of entries that were kept with them."""
    members = {"endpoints": [f"{URL}?token=s3cret", URL], "url": f"{URL}?token=s3cret", "max_checks": 3}
    hidden = {"endpoints": [f"{URL}?<hidden>", URL], "url": f"{URL}?<hidden>", "max_checks": 3}
    await directory.put_group("shop", DEFAULT_SETTINGS, [], ActEntry(1, "a", "put", "shop", None, None, members))
    kept = await database.read(lambda conn: conn.execute(sa.select(audit.c.after)).scalar_one())
    assert "s3cret" not in kept
    await database.run(lambda conn: conn.execute(sa.update(audit).values(before=json.dumps(members))))
    ((entry,), _) = await database.read(lambda conn: read_audit(conn, 1))
    assert (entry.before, entry.after) == (hidden, hidden)


async def test_stats_come_by_group_with_ages_of_pending_ones(database: Database) -> None:
    """Totals, oldest and histogram; ended ones are not looked at (C)."""
    now_ms = 1_000_000_000
    ages_s = {"shop": [0, 1, 4, 100_000], "bank": [40]}
    rows = [
        make_row(f"{group:0>20}{n:08}", group, 0, 100 * len(group) + n + ord(group[0]), now_ms - age * 1000)
        for group, ages in ages_s.items()
        for n, age in enumerate(ages)
    ]

    def fill(conn: Connection) -> None:
        insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row) for row in rows])
        columns = ("producer_group", "prepared", "committed", "blocked", "rolled_back", "parked")
        insert_rows(conn, group_counts, columns, [("shop", 10, 3, 1, 2, 1), ("bank", 1, 0, 0, 0, 0)])
        recount_pending(conn)

    await database.run(fill)
    stats = await database.read(lambda conn: read_stats(conn, now_ms))
    shop = stats.groups["shop"]
    assert (shop.pending, shop.blocked, shop.oldest_pending_ms) == (4, 1, now_ms - 100_000_000)
    assert {bound: count for bound, count in shop.age_histogram if count} == {1: 2, 5: 1, None: 1}
    assert (stats.total.prepared, stats.total.pending, stats.total.oldest_pending_ms) == (11, 5, now_ms - 100_000_000)
    assert [bound for bound, _ in stats.total.age_histogram] == [*AGE_BOUNDS_S, None]
    assert sum(count for _, count in stats.total.age_histogram) == 5


async def test_ages_are_told_without_counting(database: Database) -> None:
    """However many come and go, and whenever they are asked for: sums of few rows, and none are left of those gone."""
    random, asked_s = Random(5), (1_700_000_000, 1_700_000_007, 1_700_003_600, 1_700_086_399)
    pending = [
        (random.choice(["shop", "bank"]), 1_700_000_000 - int(random.expovariate(1 / scale)))
        for scale in (3, 300, 30_000, 300_000)
        for _ in range(100)
    ]
    for now_s in asked_s:
        await database.run(lambda conn: add_pending(conn, Counter(pending)))
        ages = await database.read(lambda conn, now=now_s: count_ages(conn, now * 1000 + 999))
        for group, histogram in ages.items():
            bounds = [bound for bound, _ in histogram if bound is not None]
            places = [bisect_left(bounds, now_s - second) for name, second in pending if name == group]
            assert [count for _, count in histogram] == [places.count(n) for n in range(len(bounds) + 1)]
        await database.run(lambda conn: add_pending(conn, {key: -count for key, count in Counter(pending).items()}))
        assert await database.read(lambda conn: count_ages(conn, 0)) == {}
        assert await database.read(lambda conn: conn.execute(sa.select(pending_ages)).all()) == []


async def test_ages_made_anew_hold_what_an_older_release_is_about_to_commit(postgres: Any) -> None:
    """It moves the position of its queue, writes a row, and adds nothing to the ages: they are made when it is done."""
    database = Database(postgres.create_migrated())
    identity = LogIdentity("c", "j", "o")
    before, after = AppliedPosition(0, 0, 0), AppliedPosition(1, 1, 1)
    await database.run(lambda conn: begin_position(conn, 0, before, identity))
    with database.engine.connect() as chunk, chunk.begin():
        assert move_position(chunk, 0, before, after)
        row = make_row(make_transaction_id(0, 7), "shop", 0, 0, 1_000_000)
        insert_rows(chunk, transactions, ALL_COLUMNS, [all_values(row)])
        making = asyncio.create_task(database.run(recount_pending))
        while not making.done() and not await database.read(_count_waiting):
            await asyncio.wait([making], timeout=0.01)
    await making
    ages = await database.read(lambda conn: count_ages(conn, 1_000_000))
    assert {group: sum(count for _, count in histogram) for group, histogram in ages.items()} == {"shop": 1}
    await database.close()


def _count_waiting(conn: Connection) -> int:
    return int(conn.execute(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6))
def test_any_stretch_of_time_is_five_rows_of_spans(begin_s: int, length_s: int) -> None:
    """At most; one after the other without a gap, whole spans each."""
    parts = sorted(cover(begin_s, begin_s + length_s), key=itemgetter(1, 2))
    assert (parts[0][1], parts[-1][2]) == (begin_s, begin_s + length_s)
    assert all(before[2] == after[1] for before, after in pairwise(parts))
    assert all(first % span == last % span == 0 for span, first, last in parts)
    assert all((last - first) // span < 120 for span, first, last in parts if span < 3_600)
    assert len(parts) <= 5


async def test_empty_stats_are_zeros(database: Database) -> None:
    """Before the first transaction there is nothing, not an error."""
    stats = await database.read(lambda conn: read_stats(conn, 1))
    assert (stats.total.prepared, stats.total.pending, stats.groups) == (0, 0, {})


async def test_audit_is_paged_newest_first(directory: SqlDirectory, database: Database) -> None:
    """Who did what, with before and after, kept with the act itself."""
    for number in range(5):
        entry = ActEntry(number, "ann", "put", f"group-{number}", "why", {"a": number}, None)
        await directory.put_group(f"group-{number}", DEFAULT_SETTINGS, [], entry)
    first, cursor = await database.read(lambda conn: read_audit(conn, 3))
    rest, last = await database.read(lambda conn: read_audit(conn, 3, cursor))
    assert [entry.at_ms for entry in first + rest] == [4, 3, 2, 1, 0]
    assert (first[0].before, first[0].after, last) == ({"a": 4}, None, None)
    with pytest.raises(MalformedCursor):
        await database.read(lambda conn: read_audit(conn, 3, "MTo1OjU"))


JOB = RedriveJob("job-1", 1, 1, "ann", "why", {"group": "shop"}, "resume", 50)


async def test_redrive_job_is_worked_at_by_one_until_its_lease_ends(database: Database) -> None:
    """A process that dies is followed by another, from the page it had reached (89)."""
    await database.run(lambda conn: create_job(conn, JOB))
    assert await database.run(lambda conn: claim_job(conn, "one", 100, 50)) == JOB
    assert await database.run(lambda conn: claim_job(conn, "two", 149, 50)) is None
    step = replace(JOB, updated_ms=120, cursor="next", counts={"done": 7})
    assert await database.run(lambda conn: advance_job(conn, step, "one"))
    assert await database.run(lambda conn: claim_job(conn, "two", 150, 50)) == step
    assert not await database.run(lambda conn: advance_job(conn, step, "one"))


async def test_stopped_or_finished_job_is_not_claimed(database: Database) -> None:
    """Stop means that nothing more is begun, and it stays visible."""
    await database.run(lambda conn: create_job(conn, JOB))
    await database.run(lambda conn: claim_job(conn, "one", 100, 50))
    assert await database.run(lambda conn: stop_job(conn, "job-1", 110))
    assert not await database.run(lambda conn: stop_job(conn, "job-1", 111))
    step = replace(JOB, updated_ms=120, counts={"done": 7}, state=JobState.DONE)
    assert not await database.run(lambda conn: advance_job(conn, step, "two"))
    assert not await database.run(lambda conn: advance_job(conn, step, "one"))
    assert await database.run(lambda conn: claim_job(conn, "two", 1_000, 50)) is None
    found = await database.read(lambda conn: find_job(conn, "job-1"))
    assert found is not None
    assert (found.state, found.updated_ms, found.counts) == (JobState.STOPPED, 120, {"done": 7})
    assert await database.read(lambda conn: list_jobs(conn, 5)) == [found]
    assert await database.read(lambda conn: find_job(conn, "job-2")) is None


async def test_lease_belongs_to_one_until_it_ends(database: Database) -> None:
    """Renewed by its owner, taken by another only afterwards, free when given back."""

    async def take(owner: str, now_ms: int) -> bool:
        return (await database.run(lambda conn: take_lease(conn, "projector", owner, now_ms, 50))).owner == owner

    assert await take("one", 100)
    assert not await take("two", 149)
    assert await take("one", 140)
    assert not await take("two", 189)
    assert await take("two", 190)
    await database.run(lambda conn: release_lease(conn, "projector", "one"))
    assert not await take("one", 191)
    await database.run(lambda conn: release_lease(conn, "projector", "two"))
    assert await take("one", 192)


async def test_lease_of_a_clock_that_was_set_back_is_taken_over_once_it_is_abandoned(database: Database) -> None:
    """By the wall clock it would be held for an hour; whoever renews it keeps it (68)."""
    watch = LeaseWatch(50)

    async def take(owner: str, now_ms: int, monotonic_ms: int) -> bool:
        abandoned = watch.find_abandoned(monotonic_ms) if owner == "two" else None
        lease = await database.run(lambda conn: take_lease(conn, "projector", owner, now_ms, 50, abandoned))
        if owner == "two":
            watch.note(lease, monotonic_ms)
        return lease.owner == owner

    assert await take("one", 3_600_000, 0)
    assert not await take("two", 100, 0)
    assert not await take("two", 149, 49)
    assert await take("one", 3_600_049, 49)
    assert not await take("two", 150, 50)
    assert not await take("two", 199, 99)
    assert await take("two", 200, 100)
    assert not await take("one", 100, 100)


async def test_identity_is_recorded_and_replaced(database: Database) -> None:
    """What an operator accepts takes the place of what was known (62)."""
    assert await database.read(read_identity) == {}
    topics = {"half": TopicIdentity("cluster", "1"), "op": TopicIdentity("cluster", "2")}
    await database.run(lambda conn: record_identity(conn, topics, 1))
    changed = {"op": TopicIdentity("cluster", "3")}
    await database.run(lambda conn: record_identity(conn, changed, 2))
    assert await database.read(read_identity) == topics | changed


async def test_first_prepares_of_a_group_share_one_write(
    directory: SqlDirectory, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred at once would only wait for each other, and some of them too long."""
    writes: list[object] = []
    run = database.run

    async def count(work: Callable[[Connection], object], timeout_ms: int | None = None) -> object:
        writes.append(work)
        return await run(work, timeout_ms)

    monkeypatch.setattr(database, "run", count)
    made = await asyncio.gather(*[directory.ensure_group("shop") for _ in range(100)])
    assert {group.name for group in made} == {"shop"}
    assert len(writes) == 1


async def test_reader_of_a_projection_that_is_emptied_keeps_its_view(database: Database) -> None:
    """Positions that say "current" beside rows that have gone would be a false 404 (A)."""
    row = make_row("0" * 28, "shop", 0, 1, 1)
    await database.run(lambda conn: insert_rows(conn, transactions, ALL_COLUMNS, [all_values(row)]))
    await database.run(lambda conn: begin_position(conn, 0, AppliedPosition(2, 2, 0), LogIdentity("c", "j", "o")))
    loop = asyncio.get_running_loop()

    def work(conn: Connection) -> tuple[int, int]:
        s = read_positions(conn)[0].s
        asyncio.run_coroutine_threadsafe(database.run(clear_projection), loop).result()
        return s, len(find_many(conn, ["0" * 28]))

    assert await database.read(work) == (2, 1)
    assert await database.read(lambda conn: (len(read_positions(conn)), len(find_many(conn, ["0" * 28])))) == (0, 0)
