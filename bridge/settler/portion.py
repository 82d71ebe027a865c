"""Records of the journal on their way into one Kafka transaction: how many of them fit. Pure."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.queue_state import effective_okey
from bridge.core.record import EndRecord, HalfMessage, Record, Resolution
from bridge.core.record_codec import decode_record
from bridge.core.transaction import Transaction
from bridge.core.transition import LogPosition
from bridge.store.halves import LoadedHalf

_COMMIT = Resolution.COMMIT
ReadRecord = tuple[LogPosition, Record, int]  # with the hash of the ordering key, plain because it is quicker to make
Live = Mapping[str, Transaction]


class Halted(NamedTuple):
    """A record that only a newer settler can decide."""

    offset: int
    error: UnknownRecordVersion


class Portion(NamedTuple):
    """Records in order, the bodies that came with them, and the offset up to which they decide the journal."""

    records: list[ReadRecord]
    bodies: dict[str, LoadedHalf]
    last_ms: int
    next_offset: int
    halted: Halted | None = None


class Commit(NamedTuple):
    """The first record of a portion that may publish the transaction: its place there, and its offset."""

    transaction_id: str
    at: int
    offset: int


def decode_portion(
    messages: Iterable[StoredMessage], next_offset: int, quarantine: Callable[[int, MalformedRecord], None]
) -> Portion:
    """The records in order, up to the first of an unknown version; unparsable ones are left out."""
    records: list[ReadRecord] = []
    bodies: dict[str, LoadedHalf] = {}
    last_ms = 0
    for message in messages:
        place = LogPosition(message.queue_offset, message.stored_ms)
        try:
            record = decode_record(message)
            okey = 0
            if isinstance(record, HalfMessage):
                bodies[record.transaction_id] = held = LoadedHalf.decode(record, message)
                okey = effective_okey(record, held.messages[0].key)
            records.append((place, record, okey))
        except MalformedRecord as error:
            quarantine(place.offset, error)
        except UnknownRecordVersion as error:
            return Portion(records, bodies, last_ms, place.offset, Halted(place.offset, error))
        last_ms = message.stored_ms
    return Portion(records, bodies, last_ms, next_offset)


def find_commits(portion: Portion, live: Live) -> list[Commit]:
    """What may be published, in the order of the records."""
    commits: dict[str, Commit] = {}
    for index, (place, record, _) in enumerate(portion.records):
        transaction_id = record.transaction_id
        if _needs_body(record, portion.bodies, live) and transaction_id not in commits:
            commits[transaction_id] = Commit(transaction_id, index, place.offset)
    return list(commits.values())


def choose_fitting(
    commits: Sequence[Commit], bodies: Mapping[str, LoadedHalf], unread: Container[str], max_bytes: int
) -> int:
    """How many of the first commits have bodies that weigh at most `max_bytes`; one at least, if it was read.

    `bodies`: all that is known; `unread`: ids whose bodies must be read first.
    """
    size = 0
    for count, commit in enumerate(commits):
        loaded = bodies.get(commit.transaction_id)
        size += 0 if loaded is None else count_stored_bytes(loaded.stored)
        if commit.transaction_id in unread or (count and size > max_bytes):
            return count
    return len(commits)


def cut(portion: Portion, count: int) -> tuple[Portion, Portion]:
    """The first `count` records, and the rest; neither is empty."""
    first, rest = portion.records[:count], portion.records[count:]
    return (
        Portion(first, _only(portion.bodies, first), first[-1][0].stored_ms, rest[0][0].offset),
        portion._replace(records=rest, bodies=_only(portion.bodies, rest)),
    )


def _only(bodies: Mapping[str, LoadedHalf], records: Sequence[ReadRecord]) -> dict[str, LoadedHalf]:
    ids = {record.transaction_id for _, record, _ in records}
    return {i: held for i, held in bodies.items() if i in ids}


def _needs_body(record: Record, came_with: Container[str], live: Live) -> bool:
    """Whether the record may publish."""
    if isinstance(record, HalfMessage):
        return record.is_published
    if not isinstance(record, EndRecord) or record.resolution is not _COMMIT:
        return False
    t = live.get(record.transaction_id)
    return not t.is_final if t is not None else record.transaction_id in came_with
