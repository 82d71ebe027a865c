"""The Kafka adapter for the contract suite: one client process on a real broker."""

import asyncio

from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore


class KafkaProcess:
    """The stores of one client process."""

    def __init__(self, config: KafkaConfig) -> None:
        self.owners = KafkaOwnerStore(config)
        self.store = KafkaMessageStore(config, self.owners)
        self.admin = KafkaTopicAdmin(config)

    async def close(self) -> None:
        """Lets all clients go."""
        await asyncio.gather(self.owners.close(), self.store.close(), self.admin.close())


async def open_process(bootstrap_servers: str, client: str) -> KafkaProcess:
    """A client process with default settings."""
    return KafkaProcess(KafkaConfig({"bootstrap.servers": bootstrap_servers}, client_id=client))
