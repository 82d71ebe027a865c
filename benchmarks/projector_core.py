"""`python -m benchmarks.projector_core`: the projector itself on SQLite and on PostgreSQL, without Kafka."""

import gc
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.outcome import LATEST, Values, conclude
from benchmarks.stage import Shape
from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import POSITION_KEY, OpMessage, Position, encode_op, encode_position
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.transaction import Transaction, TransactionState, make_transaction_id, make_uuid7_bits
from bridge.sql.bulk import chunks
from bridge.sql.chunking import Chunk, JournalBuffer, OpBuffer, next_chunk
from bridge.sql.engine import Database, upgrade
from bridge.sql.projection import PendingRows, apply_chunk
from bridge.sql.rows import AppliedPosition, LogIdentity, begin_position
from tests.support.postgres import PostgresServer

PORTION = 250
CHUNK = 2_000  # what a busy projector writes together
_ROUNDS = 3
_TRANSACTIONS = 50_000
_NOW_MS = 1_700_000_000_000
_REQUEST = "0123456789ab-1"


class Portion(NamedTuple):
    """Records as a read may find them. Half of the transactions that it prepares end in the next one."""

    journal: list[StoredMessage]
    ops: list[StoredMessage]


class Cost(NamedTuple):
    """Microseconds of this process for each transaction: in the event loop, in the database's thread; and how many
    transactions a second, waiting for the database included."""

    decode: float
    apply: float
    per_second: float


def make_portions(transactions: int) -> Iterator[Portion]:
    """The records of that many transactions, and of those that still wait for their end at last."""
    offsets, op_offsets = count(), count()
    late: list[Transaction] = []
    for start in range(0, transactions, PORTION):
        portion = Portion([], [])
        prepared = [_add_half(portion, n, next(offsets)) for n in range(start, start + PORTION)]
        for t in late + prepared[::2]:
            _add_end(portion, t, next(offsets), next(op_offsets))
        late = prepared[1::2]
        s, place = len(portion.journal) + portion.journal[0].queue_offset, next(op_offsets)
        portion.ops.append(StoredMessage(place, POSITION_KEY, encode_position(Position(s, 0, 0, "x")), (), _NOW_MS))
        yield portion


def _add_half(portion: Portion, number: int, offset: int) -> Transaction:
    now_ms = _NOW_MS + number // 10
    transaction_id = make_transaction_id(0, make_uuid7_bits(now_ms, hash((number, 7)) & (1 << 74) - 1))
    half = HalfMessage(transaction_id, "bench", 1, now_ms, "orders", -1)
    raw = encode_half(half, [Message("orders", b"%d" % (number % 1000), b"x" * 300)], "half", 0)
    portion.journal.append(StoredMessage(offset, raw.key, raw.value, list(raw.headers), now_ms))
    return Transaction(transaction_id, "bench", offset, now_ms, number)


def _add_end(portion: Portion, t: Transaction, offset: int, op_offset: int) -> None:
    at_ms = t.appended_ms + 20
    end = EndRecord(t.transaction_id, Resolution.COMMIT, Source.PRODUCER, at_ms, request=_REQUEST)
    raw = encode_end(end, "half", 0)
    portion.journal.append(StoredMessage(offset, raw.key, raw.value, list(raw.headers), at_ms))
    ended = replace(
        t, state=TransactionState.COMMITTED, at=offset, end=offset, ended_ms=at_ms, by="producer", requests=(_REQUEST,)
    )
    value = encode_op(OpMessage(ended, (Receipt("orders", 1, offset),)))
    portion.ops.append(StoredMessage(op_offset, t.transaction_id.encode(), value, (), at_ms))


def measure(url: str, transactions: int) -> Cost:
    """Reads and applies prepared records to a new database."""
    upgrade(url)
    database = Database(url)
    position = AppliedPosition(0, 0, 0)
    ops = OpBuffer(0, 20_000)
    journal = JournalBuffer(0, 20_000, decided=ops.decided)
    pending = PendingRows()
    portions = list(make_portions(transactions))
    decode_s = apply_s = 0.0
    gc.collect()
    began = time.perf_counter()
    with database.engine.begin() as conn:
        begin_position(conn, 0, position, LogIdentity("c", "j", "o"))
    for together in chunks(portions, CHUNK // PORTION):
        started = time.process_time()
        chunk = _read(together, position, journal, ops)
        decoded = time.process_time()
        with database.engine.begin() as conn:
            result = apply_chunk(conn, chunk, partial(_times_of, CheckTimes()), pending)
        pending.note(chunk, result.pending if result else {})
        apply_s += time.process_time() - decoded
        decode_s += decoded - started
        position = chunk.after
    seconds = time.perf_counter() - began
    database.engine.dispose()
    return Cost(decode_s / transactions * 1e6, apply_s / transactions * 1e6, transactions / seconds)


def _read(portions: list[Portion], position: AppliedPosition, journal: JournalBuffer, ops: OpBuffer) -> Chunk:
    for portion in portions:
        ops.add(portion.ops, portion.ops[-1].queue_offset + 1)
        journal.add(portion.journal, portion.journal[-1].queue_offset + 1)
    chunk = next_chunk(0, position, journal, ops)
    if chunk is None:
        raise RuntimeError("the records are no chunk")
    return chunk


def _times_of(times: CheckTimes, _: str) -> CheckTimes:
    return times


def main() -> int:
    """Three rounds on each."""
    gc.set_threshold(100_000, 50, 1_000)  # as the service does
    values = Values()
    server = PostgresServer(is_durable=True)
    try:
        for _ in range(_ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                on_sqlite = measure(f"sqlite:///{folder}/bench.db", _TRANSACTIONS)
            on_postgres = measure(server.create(), _TRANSACTIONS)
            values.note("projector_core_us", on_sqlite.decode + on_sqlite.apply)
            values.note("projector_sqlite_tps", on_sqlite.per_second)
            values.note("projector_postgres_tps", on_postgres.per_second)
    finally:
        server.close()
    return conclude("projector", values, Shape(1, 0, 0), LATEST)


if __name__ == "__main__":
    raise SystemExit(main())
