"""A process with a settler and nothing else: it starts in a second, and can be frozen and killed.

Its session is shorter than brokers allow by default: `group.min.session.timeout.ms`.

python -m tests.support.settler_process BOOTSTRAP PREFIX QUEUES [DATABASE_URL]

Without a database there is no key, so every op record is believed.
"""

import asyncio
import signal
import sys

import structlog

from bridge.clock import SystemClock
from bridge.core.topics import with_prefix
from bridge.node import Backing, Node, NodeConfig
from bridge.settler.bodies import KnownTopics
from bridge.sql.engine import Database
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.store.op_topic import SealWatch
from bridge.topology import load_seals
from tests.support.check_fakes import MemoryCaller
from tests.support.settler_world import NoDatabase, RecordingObserver

SESSION_MS = 3_000  # so soon a successor gets the queues of one that stands still


async def run(bootstrap: str, prefix: str, queues: int, database_url: str | None) -> None:
    """Settles until SIGTERM."""
    config, clock = KafkaConfig({"bootstrap.servers": bootstrap}, session_timeout_ms=SESSION_MS), SystemClock()
    admin = KafkaTopicAdmin(config)
    destinations = KnownTopics(admin, clock)
    owners = KafkaOwnerStore(config, destinations.max_message_bytes)
    store = KafkaMessageStore(config, owners)
    seal_watch, topics = SealWatch(), with_prefix(prefix, queues)
    if database_url is not None:
        database = Database(database_url)
        await load_seals(database, seal_watch.seals)
        await database.close()
    backing = Backing(
        store, owners, admin, NoDatabase(), clock, lambda: MemoryCaller(clock),
        destinations=destinations, seal_watch=seal_watch,
    )  # fmt: skip
    settler = Node(backing, NodeConfig("lone", topics)).make_settler(RecordingObserver())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, settler.stop)
    await settler.run_forever()
    await asyncio.gather(owners.close(), store.close(), admin.close())


if __name__ == "__main__":
    structlog.configure(
        processors=[structlog.processors.TimeStamper(), structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(),
    )
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None))
