"""`python -m benchmarks.check_core`: CPU time for one check that is due, without Kafka and without HTTP.

In the checker, from its due time until its answer is handed to the journal, with bodies that are read again; and in the
settler, which reads the answer and publishes the transaction.
"""

import asyncio
import base64
import gc
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from random import SystemRandom

from benchmarks.settler_core import TOPICS, make_records, open_queue, settle
from bridge.clock import SystemClock
from bridge.core.check_rules import CheckCalls, GroupSettings
from bridge.core.keyring import BridgeKey, Keyring
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.pending_table import PendingTable
from bridge.core.record import Source
from bridge.core.record_codec import decode_record
from bridge.core.transaction import Transaction
from bridge.directory import Endpoint, ProducerGroup
from bridge.node import make_random_text
from bridge.settler.bodies import Bodies, Loaded
from bridge.settler.ports import QueueOwner
from bridge.store.memory.store import MemoryStore
from bridge.store.message_store import PutResult, PutStatus
from checker.call import CheckCaller, EndpointCall, EndpointReply
from checker.context import CheckContext
from checker.service import CheckService
from tests.support.check_fakes import MemoryDirectory, MemoryPullCheckStore
from tests.support.memory_world import make_cluster

_URL = "https://shop.example/checks"
_ASKED = re.compile(rb'"transaction_id":"([^"]*)","check_number":1,"nonce":"([^"]*)"')
_ANSWER = {
    "source": Source.CHECK,
    "group": "bench",
    "check_number": 1,
    "endpoint": _URL,
    "status": 200,
    "latency_ms": 7,
}
_SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


class _Endpoint(CheckCaller):
    """Commits everything, in time that is not counted."""

    spent = 0.0

    async def call(self, call: EndpointCall) -> EndpointReply:
        began = time.process_time()
        said = [
            {"transaction_id": transaction_id.decode(), "nonce": nonce.decode(), "resolution": "COMMIT"}
            for transaction_id, nonce in _ASKED.findall(call.body)
        ]
        body = json.dumps({"resolutions": said}).encode()
        self.spent += time.process_time() - began
        return EndpointReply(_URL, 7, 200, body)

    async def close(self) -> None:
        return None


class _Store(MemoryStore):
    """A journal of prepared records, which takes answers and forgets them."""

    records: Sequence[StoredMessage] = ()
    taken = 0

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        return {offset: self.records[offset] for offset in offsets}

    async def put_many(self, messages: Sequence[Message]) -> list[PutResult]:
        self.taken += len(messages)
        return [PutResult(PutStatus.PUT_OK)] * len(messages)


class _Owner(QueueOwner):
    """A queue that has been read, whose bodies are not in memory."""

    queue_id = 0

    def __init__(self, store: _Store) -> None:
        self._clock = SystemClock()
        self._bodies = Bodies(store, TOPICS, 0, 0, 16 * 1024 * 1024)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def note_end(self) -> None:
        return None

    def read_through_ms(self) -> int:
        return self._clock.now_ms()

    async def get_bodies(self, transactions: Sequence[Transaction], max_bytes: int) -> Loaded:
        return await self._bodies.load(transactions, max_bytes)

    def park(self, reasons: Mapping[str, str]) -> None:
        raise AssertionError


async def measure_checker(checks: int) -> float:
    """Microseconds of CPU for each check, from due to answered."""
    clock = SystemClock()
    cluster = make_cluster(clock, TOPICS)
    store = _Store(cluster, cluster.connect("checker"))
    store.records = make_records(checks, checks)[:checks]
    caller, directory = _Endpoint(), MemoryDirectory()
    settings = GroupSettings(calls=CheckCalls(batch_size=100))
    directory.groups["bench"] = ProducerGroup("bench", settings, (Endpoint(_URL),), (_SECRET,))
    context = CheckContext(
        store,
        TOPICS,
        directory,
        caller,
        clock,
        partial(make_random_text, SystemRandom()),
        SystemRandom().random,
        MemoryPullCheckStore(),
        keyring=Keyring([BridgeKey("k1", b"k" * 32)]),
    )
    service = CheckService(context)
    due_ms = clock.now_ms() - 10_000
    due = [
        Transaction(
            decode_record(half).transaction_id, "bench", n, due_ms, 0, at=n, since_ms=due_ms, next_due_ms=due_ms
        )
        for n, half in enumerate(store.records)
    ]
    service.queue_taken(_Owner(store), due, PendingTable())
    del due
    gc.collect()
    started = time.process_time()
    while store.taken < checks:
        await service.run_once()
    return (time.process_time() - started - caller.spent) / checks * 1e6


async def measure_settler(checks: int) -> float:
    """Microseconds of CPU for each answer, from the journal to the real topic."""
    queue = await open_queue(make_records(checks, checks, **_ANSWER), 1_000)
    await settle(queue, lambda: queue.state.live_count >= checks)
    return await settle(queue, lambda: queue.counts.published >= checks) / checks * 1e6


def main(checks: int = 20_000, runs: int = 3) -> None:
    """Shows the best of some runs."""
    gc.set_threshold(100_000, 50, 1_000)
    checker = min([asyncio.run(measure_checker(checks)) for _ in range(runs)])
    settler = min([asyncio.run(measure_settler(checks)) for _ in range(runs)])
    print(f"checker: {checker:.1f} us a check, settler: {settler:.1f} us an answer")


if __name__ == "__main__":
    main()
