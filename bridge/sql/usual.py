"""The stories that nearly all transactions of a chunk have, told without looking at what SQL holds of them.

They are: prepared, and committed by its producer in the same chunk; prepared, and nothing else yet; committed after
it was prepared in an earlier chunk of this process. All others are rare: `Fold` tells them. A half message that is no
repeat is taken to be new. Where it is known all the same a unique index refuses it, and the whole chunk is folded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

from bridge.core.check_rules import CheckTimes, first_check_ms
from bridge.core.transaction import TransactionState
from bridge.sql.chunking import Chunk
from bridge.sql.entries import CommitEntry, HalfEntry
from bridge.sql.fold import TimesOf
from bridge.sql.rows import PREPARED, encode_message, make_row_id, make_search_key

_COMMITTED = TransactionState.COMMITTED.value
_NEW_COLUMNS = (
    "id", "transaction_id", "producer_group", "queue_id", "appended_ms", "born_ms", "first_check_ms", "messages",
    "queue_offset", "at_offset", "since_ms",
)  # fmt: skip
_NEW: dict[str, str | int | None] = {"has_half": 1, "blocked": 0, "check_times": 0, "base": 0}
_ENDED: dict[str, str | int | None] = {"state": _COMMITTED, "live": 0, "resolved_by": "producer"}
_END_COLUMNS = ("ended_ms", "published_ms", "receipts")


class RowShape(NamedTuple):
    """Columns whose values are in the rows, and those that are alike in all of them. All others are null."""

    columns: tuple[str, ...]
    constants: Mapping[str, str | int | None]


PREPARED_ROWS = RowShape((*_NEW_COLUMNS, "next_due_ms"), {**_NEW, "state": PREPARED, "live": 1})
COMMITTED_ROWS = RowShape((*_NEW_COLUMNS, *_END_COLUMNS), {**_NEW, **_ENDED})
ENDED_ROWS = RowShape(("at_offset", *_END_COLUMNS), {**_ENDED, "next_due_ms": None})  # then the id


class PendingRow(NamedTuple):
    """A row that this process wrote, and that nothing has happened to since."""

    offset: int
    appended_ms: int
    group: str


class PendingRows(dict[str, PendingRow]):
    """The newest of them by id. Bounded: what is forgotten here is looked up."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit

    def note(self, chunk: Chunk, pending: Mapping[str, PendingRow]) -> None:
        """Takes over what a committed chunk did: the rows that it wrote are known, others that it changed no more."""
        if self:
            for entry in chain(chunk.ops, chunk.others):
                self.pop(entry.transaction_id, None)
        self.update(pending)
        for transaction_id in list(islice(self, max(0, len(self) - self._limit))):
            del self[transaction_id]


@dataclass(slots=True)
class GroupTotals:
    """What is to be added to a group's counts, and when its transactions are checked."""

    times: CheckTimes
    prepared: int = 0
    committed: int = 0


class UsualStories:
    """Rows in the order of their shapes' columns, and what goes with them.

    `totals`: by group. `pending`: the rows of `prepared`. `rest`: the other stories, whole.
    Without `pending` no story is usual.
    """

    def __init__(self, chunk: Chunk, pending: PendingRows | None, times_of: TimesOf) -> None:
        self.prepared: list[tuple[Any, ...]] = []
        self.committed: list[tuple[Any, ...]] = []
        self.ended: list[tuple[Any, ...]] = []
        self.keys: list[tuple[Any, ...]] = []
        self.totals: dict[str, GroupTotals] = {}
        self.pending: dict[str, PendingRow] = {}
        self._queue_id = chunk.queue_id
        self._times_of = times_of
        self.rest = chunk if pending is None else self._tell(chunk, pending)

    def _tell(self, chunk: Chunk, pending: PendingRows) -> Chunk:
        halves, commits, rare = _sort(chunk)
        for transaction_id, half in halves.items():
            commit = commits.pop(transaction_id, None)
            is_other = commit is not None and commit.half != half.offset
            if is_other or transaction_id in rare or transaction_id in pending:
                rare.add(transaction_id)
            else:
                self._add_new(half, commit)
        for transaction_id, commit in commits.items():
            row = pending.get(transaction_id)
            is_known = row is not None and (row.offset, row.appended_ms) == (commit.half, commit.appended_ms)
            if row is None or not is_known or transaction_id in rare:
                rare.add(transaction_id)
            else:
                self._add_end(row, commit)
        return chunk.only(rare)

    def _add_new(self, entry: HalfEntry, commit: CommitEntry | None) -> None:
        half, offset, stored_ms, message = entry.half, entry.offset, entry.stored_ms, entry.messages[0]
        transaction_id, group, born_ms, queue_id = entry.transaction_id, half.group, half.born_ms, self._queue_id
        totals = self._totals_of(group)
        first_ms = first_check_ms(half, stored_ms, totals.times)
        row_id, messages = make_row_id(queue_id, offset), f"[{encode_message(message)}]"
        self.keys.append((message.topic, born_ms, row_id, 0, make_search_key(message.key)))
        totals.prepared += 1
        if commit is None:
            self.prepared.append(
                (row_id, transaction_id, group, queue_id, stored_ms, born_ms, first_ms, messages, offset, offset,
                 stored_ms, first_ms)
            )  # fmt: skip
            self.pending[transaction_id] = PendingRow(offset, stored_ms, group)
        else:
            self.committed.append(
                (row_id, transaction_id, group, queue_id, stored_ms, born_ms, first_ms, messages, offset, commit.at,
                 commit.appended_ms, commit.ended_ms, commit.stored_ms, commit.receipts)
            )  # fmt: skip
            totals.committed += 1

    def _add_end(self, row: PendingRow, commit: CommitEntry) -> None:
        row_id = make_row_id(self._queue_id, row.offset)
        self.ended.append((commit.at, commit.ended_ms, commit.stored_ms, commit.receipts, row_id))
        self._totals_of(row.group).committed += 1

    def _totals_of(self, group: str) -> GroupTotals:
        totals = self.totals.get(group)
        if totals is None:
            totals = self.totals[group] = GroupTotals(self._times_of(group))
        return totals


def _sort(chunk: Chunk) -> tuple[dict[str, HalfEntry], dict[str, CommitEntry], set[str]]:
    """Half messages and commits by id, and the ids that have more than one, or anything else to be told."""
    halves: dict[str, HalfEntry] = {}
    commits: dict[str, CommitEntry] = {}
    rare: set[str] = set()
    for half in chunk.halves:
        transaction_id = half.transaction_id
        if transaction_id in halves or not half.is_plain:
            rare.add(transaction_id)
        halves[transaction_id] = half
    for op in chunk.ops:
        transaction_id = op.transaction_id
        if not isinstance(op, CommitEntry) or transaction_id in commits:
            rare.add(transaction_id)
        else:
            commits[transaction_id] = op
    for other in chunk.others:
        commit = commits.get(other.transaction_id)
        if commit is None or commit.at != other.offset or other.has_remark:
            rare.add(other.transaction_id)
    return halves, commits, rare
