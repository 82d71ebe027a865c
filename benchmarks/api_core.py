"""`python -m benchmarks.api_core`: CPU time of the api itself for one transaction, without HTTP and Kafka."""

import asyncio
import gc
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from api.web.parse import parse_prepare_batch, parse_resolutions
from api.web.transactions import show_all
from bridge.clock import SystemClock
from bridge.core.grants import EVERYTHING, Grant, Rights, Verb
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, encode_op
from bridge.core.topics import InternalTopics
from bridge.core.transaction import COMMITTED, Transaction, TransactionView
from bridge.node import Backing, Node, NodeConfig
from bridge.service.contract import EndCall, PrepareCall, Prepared, Wait
from bridge.sql.engine import InlineDatabase
from bridge.sql.tables import metadata
from bridge.store.memory.process import MemoryProcess
from bridge.store.message_store import BatchWriter, GetResult, GetStatus, GroupMember, PutResult, PutStatus, QueueReader
from tests.support.check_fakes import MemoryCaller
from tests.support.memory_world import make_cluster

SIZE = 100
TOPICS = InternalTopics(queues=2)
NOW_MS = 1_700_000_000_000


class _Reader:
    """One queue of the op topic: what the settlers would have written."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[list[StoredMessage]] = asyncio.Queue()
        self._next = 0

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        found = await self.written.get()
        self._next += len(found)
        return GetResult(GetStatus.FOUND, found, self._next, 0, self._next)

    async def close(self) -> None:
        return None


class _Journal:
    """Takes everything at once; ends are settled at once. Both ports of the store the service uses."""

    def __init__(self, process: MemoryProcess) -> None:
        self._store = process.store
        self.readers = [_Reader() for _ in range(TOPICS.queues)]
        self._offsets = itertools.count()

    def put_then(self, messages: Sequence[Message], give: Callable[[list[PutResult]], None]) -> None:
        if messages[0].value is None:
            ops: list[list[StoredMessage]] = [[] for _ in self.readers]
            for message in messages:
                ops[message.queue_id].append(_settled(message))
            for reader, written in zip(self.readers, ops, strict=True):
                reader.written.put_nowait(written)
        results = [PutResult(PutStatus.PUT_OK, next(self._offsets), NOW_MS) for _ in messages]
        asyncio.get_running_loop().call_soon(give, results)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the empty log's to answer."""
        return getattr(self._store, name)


class _Owners:
    """Opens the readers of the op topic."""

    def __init__(self, journal: _Journal) -> None:
        self._journal = journal

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        return self._journal.readers[queue.queue_id]

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        raise LookupError("nothing is settled here")

    def join_group(self, group: str, topic: str) -> GroupMember:
        raise LookupError("nothing is shared here")


def _settled(message: Message) -> StoredMessage:
    """The op message of a commit."""
    transaction_id = (message.key or b"").decode()
    t = Transaction(transaction_id, "bench", 7, NOW_MS, 1, COMMITTED, 9, by="producer", end=9, ended_ms=NOW_MS)
    op = OpMessage(t, (Receipt("orders", 1, 7),))
    return StoredMessage(9, message.key, encode_op(op), (), NOW_MS)


def make_prepares() -> bytes:
    """The body of a batch."""
    value = "x" * 300
    messages = [{"topic": "orders", "key": str(n % 1000), "value": value} for n in range(SIZE)]
    return json.dumps({"transactions": [{"producer_group": "bench", "messages": [m]} for m in messages]}).encode()


@asynccontextmanager
async def open_service(folder: Path) -> AsyncIterator[Node]:
    """One whose journal takes everything at once."""
    clock = SystemClock()
    cluster = make_cluster(clock, TOPICS)
    cluster.log.create_topic("orders", 2)
    process = MemoryProcess(cluster, "bench")
    journal = _Journal(process)
    database = InlineDatabase(f"sqlite:///{folder}/bench.db")
    metadata.create_all(database.engine)
    backing = Backing(journal, _Owners(journal), process.admin, database, clock, lambda: MemoryCaller(clock))
    service = Node(backing, NodeConfig("bench", TOPICS))
    service.guard.faults = ()
    follower = asyncio.create_task(service.follower.run_forever())
    while not service.is_ready:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    try:
        yield service
    finally:
        follower.cancel()


async def measure(folder: Path, transactions: int, rights: Rights) -> dict[str, float]:
    """Microseconds of CPU for each transaction, by stage; of the service with what hears the settlers.

    `rights`: of the caller.
    """
    async with open_service(folder) as service:
        return await _measure(service, transactions, rights)


async def _measure(service: Node, transactions: int, rights: Rights) -> dict[str, float]:
    raw, max_headers = make_prepares(), 64
    spent = dict.fromkeys(("parse", "prepare", "show", "parse_ends", "end", "show_ends"), 0.0)

    def note(stage: str, since: float) -> float:
        now = time.process_time()
        spent[stage] += now - since
        return now

    await service.transactions.prepare([c for c in parse_prepare_batch(raw, max_headers) if isinstance(c, PrepareCall)])
    gc.collect()
    for _ in range(transactions // SIZE):
        at = time.process_time()
        calls = [call for call in parse_prepare_batch(raw, max_headers) if isinstance(call, PrepareCall)]
        at = note("parse", at)
        prepared = await service.transactions.prepare(calls, rights=rights)
        at = note("prepare", at)
        await show_all(service.turns, prepared, "0", "/transactions/{}")
        note("show", at)
        ids = [p.transaction_id for p in prepared if isinstance(p, Prepared)]
        body = json.dumps({"resolutions": [{"transaction_id": i, "resolution": "COMMIT"} for i in ids]}).encode()
        at = time.process_time()
        ends = [call for call in parse_resolutions(body) if isinstance(call, EndCall)]
        at = note("parse_ends", at)
        ended = await service.transactions.end(ends, Wait.SETTLED, rights=rights)
        at = note("end", at)
        await show_all(service.turns, ended, "0", "/resolutions/{}")
        note("show_ends", at)
        assert len(ended) == SIZE
        assert all(isinstance(view, TransactionView) for view in ended)
    return {stage: used / transactions * 1e6 for stage, used in spent.items()}


def main() -> None:
    """Three rounds, each without keys and with those of a producer."""
    gc.set_threshold(100_000, 50, 1_000)
    producer = Rights([Grant(Verb.PREPARE, "bench", "orders"), Grant(Verb.DECIDE, "bench")])
    for name, rights in 3 * [("without keys", EVERYTHING), ("with keys", producer)]:
        with TemporaryDirectory() as folder:
            spent = asyncio.run(measure(Path(folder), 40_000, rights))
        shown = ", ".join(f"{stage} {used:.1f}" for stage, used in spent.items())
        print(f"{name}: {sum(spent.values()):.1f} us a transaction: {shown}")


if __name__ == "__main__":
    main()
