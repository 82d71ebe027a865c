"""What must be so, by the journal alone: an own, plain reading of it. Shares the record codec with the bridge, and
no rule. Source: design sections 3 and 5."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from bridge.core.message import Message, StoredMessage
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import decode_body, decode_record
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState

if TYPE_CHECKING:
    from tests.simulation.evidence import Archive


_VOID_MS = 3_000  # as long as the simulation makes it


class Truth(Struct):
    """One transaction by the journal. `state`: PREPARED, or final; whether it was parked the journal does not know."""

    transaction_id: str
    group: str
    queue_id: int
    half_offset: int
    appended_ms: int
    messages: tuple[Message, ...]
    ordering: tuple[str, str, bytes]
    """An ordering key orders within its group, the first message's key within group and topic."""
    state: TransactionState = TransactionState.PREPARED
    decided_at: int = -1
    decided_ms: int = 0
    by: str | None = None
    immunity_s: int = 0
    max_checks: int | None = None
    """Its own; None: as its group's settings say."""
    check_times: int = 0
    base: int = 0
    most_answered: int = 0
    """Answered checks in one life, at most."""
    given_up_at: tuple[int, ...] = ()
    """Where operators' acts to give it up lie, whether or not it was blocked there."""


class Ended(Struct, frozen=True):
    """An end record as the journal holds it, effective or not."""

    transaction_id: str
    resolution: Resolution
    source: Source
    check_number: int
    offset: int
    stored_ms: int
    actor: str | None = None
    reason: str | None = None


def find_ends(archive: "Archive", topics: InternalTopics) -> list[Ended]:
    """Every end that was recorded, in order of its queue."""
    records = ((stored, decode_record(stored)) for _, messages in archive.read(topics.half) for stored in messages)
    return [
        Ended(
            r.transaction_id,
            r.resolution,
            r.source,
            r.check_number,
            stored.queue_offset,
            stored.stored_ms,
            r.actor,
            r.reason,
        )
        for stored, r in records
        if isinstance(r, EndRecord)
    ]


def find_acts(archive: "Archive", topics: InternalTopics) -> list[tuple[int, ActRecord]]:
    """Every operator's act with its append time."""
    records = [(stored, decode_record(stored)) for _, messages in archive.read(topics.half) for stored in messages]
    return [(stored.stored_ms, record) for stored, record in records if isinstance(record, ActRecord)]


def find_truth(archive: "Archive", topics: InternalTopics) -> Mapping[str, Truth]:
    """Every transaction that any journal queue holds, or held."""
    known: dict[str, Truth] = {}
    for (_, queue_id), messages in archive.read(topics.half):
        for stored in messages:
            record = decode_record(stored)
            if isinstance(record, HalfMessage):
                is_void = record.idempotency_key is not None and stored.stored_ms - record.seen_ms > _VOID_MS
                if is_void or record.transaction_id in known:
                    continue
                bodies = tuple(decode_body(record, stored))
                ordering = (
                    (record.group, "", record.ordering_key.encode())
                    if record.ordering_key is not None
                    else (
                        (record.group, bodies[0].topic, bodies[0].key)
                        if bodies[0].key is not None
                        else ("", "", record.transaction_id.encode())
                    )
                )
                truth = known[record.transaction_id] = Truth(
                    record.transaction_id, record.group, queue_id, stored.queue_offset,
                    stored.stored_ms, bodies, ordering,
                    immunity_s=record.immunity_s or 0, max_checks=record.max_checks,
                )  # fmt: skip
                if record.is_published:
                    _decide(truth, TransactionState.COMMITTED, Source.PRODUCER, stored)
            elif isinstance(record, ActRecord) and record.act is Act.RESUME and record.transaction_id in known:
                resumed = known[record.transaction_id]
                resumed.base = resumed.check_times
            elif isinstance(record, ActRecord) and record.act is Act.ABANDON and record.transaction_id in known:
                known[record.transaction_id].given_up_at += (stored.queue_offset,)
            elif isinstance(record, EndRecord) and record.resolution is Resolution.UNKNOWN:
                _count(known.get(record.transaction_id), record)
            elif isinstance(record, EndRecord):
                ended = known.get(record.transaction_id)
                if ended is None or ended.state is not TransactionState.PREPARED:
                    continue
                if record.group is None or record.group == ended.group:
                    is_commit = record.resolution is Resolution.COMMIT
                    state = TransactionState.COMMITTED if is_commit else TransactionState.ROLLED_BACK
                    _decide(ended, state, record.source, stored)
    return known


def _count(truth: Truth | None, record: EndRecord) -> None:
    """An answer that changed nothing uses up the check it was given to."""
    if truth is not None and record.source is Source.CHECK and record.check_number == truth.check_times + 1:
        truth.check_times += 1
        truth.most_answered = max(truth.most_answered, truth.check_times - truth.base)


def _decide(truth: Truth, state: TransactionState, source: Source, stored: StoredMessage) -> None:
    truth.state, truth.decided_at, truth.decided_ms = state, stored.queue_offset, stored.stored_ms
    truth.by = source.name.lower()
