"""TABLE_MISMATCH: rows of the producers' own tables against what Kafka says of their transactions. Pure.

A half message is stored before the local transaction that belongs to it is committed. So what a row that was read
before the journal's end was noted belongs to is in the journal, unless it was removed there; and what a transaction
that was committed in the window belongs to is in a table that was read after it, unless it was removed there. No
clock decides about either; clocks are asked only for what is old, with a day to spare.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark.judge.history import TransactionHistory
from spark.judge.rules import FindingKind, Found
from spark.read.envelope import COMMIT, EndSource, Event, OffsetRange, OpState, Scope, born_ms
from spark.read.table_list import BARRED, JdbcLink, Table

_DAY_MS = 86_400_000
_APART_MS = 3_600_000  # how far the clocks of services and databases may be apart


class Row(NamedTuple):
    """A row as it is compared. `tx`: the id it holds; `name`: what the table shows it by, or the hash of its key."""

    tx: str | None
    name: str | None = None
    state: str | None = None
    at_ms: int | None = None


def judge_row(
    table: Table, row: Row, stories: Sequence[TransactionHistory], scope: Scope, *, is_read_first: bool = True
) -> Found | None:
    """What is wrong with a row; `stories`: what was read of the transactions it may belong to.

    `is_read_first`: whether it was read before the window's ends were noted.
    """
    stories = [story for story in stories if fate_of(story) is not None]
    fates = {fate_of(story): story for story in reversed(stories)}
    committed = fates.get(OpState.COMMITTED)
    if row.state == BARRED:
        return None if committed is None else _found(f"barred in {table.title}", committed)
    if committed is not None or OpState.PREPARED in fates:
        return None
    where = f"row {row.name} in {table.title}" if row.name else f"row in {table.title}"
    parked = fates.get(OpState.PARKED)
    if parked is not None:
        is_young = parked.last is None or scope.now_ms - parked.last.ms <= scope.graces.settle_ms
        return None if is_young else _found(where, parked)
    is_known = bool(stories) and table.link is not JdbcLink.KEY  # a key may have had other transactions
    if not is_known and not _would_be_known(table, row, scope, is_read_first=is_read_first):
        return None
    if stories:
        return _found(where, stories[-1])
    missing = f"no message of its key in {table.topic}" if table.link is JdbcLink.KEY else "its transaction is unknown"
    return Found(FindingKind.TABLE_MISMATCH, f"{where}, but {missing}", ())


def judge_rowless(tables: Sequence[Table], story: TransactionHistory) -> Found | None:
    """What is wrong with a transaction that has no row in these tables, of which one should have it."""
    is_published = story.half is not None and story.half.code == COMMIT
    if fate_of(story) is not OpState.COMMITTED or (is_published and tables[0].link is not JdbcLink.KEY):
        return None
    return _found(f"no row in {', '.join(sorted(table.title for table in tables))}", story)


def fate_of(story: TransactionHistory) -> OpState | None:
    """What has become of a transaction: by the journal, else by the op topic; a blocked or abandoned commit is one."""
    fate = story.decision or story.state or (None if story.half is None else OpState.PREPARED)
    return OpState.COMMITTED if fate in {OpState.BLOCKED, OpState.ABANDONED} else fate


def _found(where: str, story: TransactionHistory) -> Found:
    fate = fate_of(story)
    assert fate is not None
    return Found(FindingKind.TABLE_MISMATCH, f"{where}, but {fate.name}{_by_whom(story)}", tuple(_evidence(story)))


def _by_whom(story: TransactionHistory) -> str:
    source = None if story.decided is None else story.decided.src
    return "" if source is None else f" by {EndSource(source).name.lower()}"


def _evidence(story: TransactionHistory) -> Iterator[Event]:
    yield from (event for event in (story.half, story.decided, story.last) if event is not None)
    yield from story.visible


def _would_be_known(table: Table, row: Row, scope: Scope, *, is_read_first: bool) -> bool:
    """Whether the row's half message, had there been one, would have been read."""
    journals = _journals(row.tx, scope)
    began = [journal.first_ms for place, journal in scope.extents.items() if place.topic == scope.half_topic]
    if not journals or not any(began):
        return False
    is_whole = all(journal.is_whole for journal in journals)
    born = row.at_ms if row.tx is None else born_ms(row.tx)
    if born is None:  # of a keyed transaction, which may be older than its row by a whole life
        return is_whole and is_read_first and table.link is not JdbcLink.KEY
    if table.link is JdbcLink.KEY and born + scope.graces.settle_ms >= scope.now_ms:
        return False  # a relay may not have come to it yet
    if is_whole:
        # not of a journal that was there before this one
        since_ms = min(ms for ms in began if ms) - scope.graces.settle_ms
    elif all(journal.first_ms for journal in journals):
        life_ms = 0 if row.tx is not None else _longest_life_ms(scope)
        since_ms = max(journal.first_ms for journal in journals) + _DAY_MS + life_ms
    else:
        return False
    return since_ms < born and (is_read_first or born + _APART_MS < scope.now_ms)


def _journals(tx: str | None, scope: Scope) -> list[OffsetRange]:
    """What was read of the queue that an id names; of all queues where there is no id."""
    if tx is None:
        return [extent for place, extent in scope.extents.items() if place.topic == scope.half_topic]
    journal = scope.journal_of(tx)
    return [] if journal is None else [journal]


def _longest_life_ms(scope: Scope) -> int:
    return max((times.max_lifetime_ms for times in scope.groups.values()), default=scope.other_groups.max_lifetime_ms)
