"""When op records begin to need a seal: made by `migrate`, read once by every process that starts."""

from functools import partial

from bridge.core.errors import ConfigError
from bridge.core.keyring import OpSeals
from bridge.core.message import MessageQueue
from bridge.core.topics import InternalTopics
from bridge.sql.engine import Database
from bridge.sql.identity import begin_seals, read_beliefs, read_keys
from bridge.store.message_store import MessageStore


async def is_sealed(database: Database) -> bool:
    """Whether this bridge has a key. Raises SqlUnavailable."""
    return bool(await database.read(read_keys))


async def is_op_topic_empty(store: MessageStore, topics: InternalTopics) -> bool:
    """Whether no settler has ever written to it: each begins with a position. Raises StoreError."""
    return not any((await _find_ends(store, topics)).values())


async def start_seals(store: MessageStore, database: Database, topics: InternalTopics, now_ms: int) -> None:
    """Makes the first key, and believes without a seal what is in the op topic now: once, or on an operator's word.

    No settler may run meanwhile: what it writes afterwards with another key, or none, would not be believed.
    Raises StoreError and SqlUnavailable.
    """
    ends = await _find_ends(store, topics)
    await database.run(partial(begin_seals, believed=ends, now_ms=now_ms))


async def load_seals(database: Database, seals: OpSeals) -> None:
    """Fills them and their keyring from SQL. Raises ConfigError where there is no key, and SqlUnavailable."""
    keys, believed = await database.read(read_keys), await database.read(read_beliefs)
    if not keys:
        raise ConfigError("this database holds no key of the bridge: run outbox-bridge migrate")
    seals.keyring.load(keys)
    seals.believed.update(believed)


async def _find_ends(store: MessageStore, topics: InternalTopics) -> dict[int, int]:
    queues = [MessageQueue(topics.op, queue_id) for queue_id in range(topics.queues)]
    return {queue.queue_id: (await store.get_offsets(queue)).maximum for queue in queues}
