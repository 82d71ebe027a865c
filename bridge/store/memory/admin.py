"""TopicAdmin over the in-memory log."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.errors import BrokerError, Code, NoAnswerError, make_store_error
from bridge.store.memory.link import Link, Step, StepKind
from bridge.store.message_store import ClusterDescription, TopicDescription

T = TypeVar("T")

_TIMEOUT_MS = 5_000


class MemoryTopicAdmin:
    """What the in-memory cluster says of its topics."""

    def __init__(self, cluster: MemoryCluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link

    async def ping(self) -> None:
        await self._ask("", lambda: None)

    async def describe_cluster(self) -> ClusterDescription:
        description = ClusterDescription(self._cluster.cluster_id, ("memory:0",))
        return await self._ask("", lambda: description)

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        topics = self._cluster.log.topics
        return await self._ask(
            ",".join(names), lambda: {name: topics[name].describe() if name in topics else None for name in names}
        )

    async def identify_topics(self, names: Collection[str]) -> dict[str, str | None]:
        topics = self._cluster.log.topics
        return await self._ask(
            ",".join(names), lambda: {name: topics[name].topic_id if name in topics else None for name in names}
        )

    async def list_topics(self) -> list[str]:
        return await self._ask("", lambda: [name for name in self._cluster.log.topics if not name.startswith("__")])

    async def create_topic(self, name: str, queues: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        def create() -> bool:
            if replication_factor != 1:
                raise BrokerError(Code.INVALID_REPLICATION_FACTOR, name)
            try:
                self._cluster.log.create_topic(name, queues, config)
            except BrokerError as error:
                if error.code is Code.TOPIC_ALREADY_EXISTS:
                    return False
                raise
            return True

        return await self._ask(name, create)

    async def _ask(self, subject: str, request: Callable[[], T]) -> T:
        try:
            return await self._link.call(Step(StepKind.DESCRIBE, self._link.client, subject), request, _TIMEOUT_MS)
        except (BrokerError, NoAnswerError) as error:
            raise make_store_error(error) from error
