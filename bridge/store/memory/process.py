"""One client process on an in-memory cluster: its stores, and how it is frozen and killed from outside."""

from bridge.core.message import MessageQueue
from bridge.store.memory.admin import MemoryTopicAdmin
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.link import Link
from bridge.store.memory.member import MemoryGroupMember
from bridge.store.memory.reader import MemoryQueueReader
from bridge.store.memory.store import MemoryStore
from bridge.store.memory.writer import MemoryBatchWriter


class MemoryOwnerStore:
    """OwnerStore of one process."""

    def __init__(self, cluster: MemoryCluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link
        self.members: list[MemoryGroupMember] = []

    def open_reader(self, queue: MessageQueue, offset: int) -> MemoryQueueReader:
        return MemoryQueueReader(self._cluster, self._link, queue, offset)

    def open_writer(self, transactional_ids: tuple[str, str]) -> MemoryBatchWriter:
        return MemoryBatchWriter(self._cluster, self._link, transactional_ids)

    def join_group(self, group: str, topic: str) -> MemoryGroupMember:
        member = MemoryGroupMember(self._cluster, self._link, group, topic)
        self.members.append(member)
        return member


class MemoryProcess:
    """The stores of one client process. Start it anew by making another one."""

    def __init__(self, cluster: MemoryCluster, client: str) -> None:
        self._link = cluster.connect(client)
        self.store = MemoryStore(cluster, self._link)
        self.owners = MemoryOwnerStore(cluster, self._link)
        self.admin = MemoryTopicAdmin(cluster, self._link)

    @property
    def is_stopped(self) -> bool:
        """Whether it is frozen or killed."""
        return self._link.is_stopped

    async def pause(self) -> None:
        """Lets others run, and waits while the process is frozen; raises CancelledError in a killed one."""
        await self._link.pause()

    def freeze(self) -> None:
        """SIGSTOP: no request leaves, no answer is seen, no heartbeat is sent."""
        self._link.freeze()
        for member in self.owners.members:
            member.freeze()

    def kill(self) -> None:
        """SIGKILL: nothing it still tries has an effect, no heartbeat is sent; cancel its tasks afterwards."""
        for member in self.owners.members:
            member.freeze()
        self._link.kill()

    def thaw(self) -> None:
        """SIGCONT."""
        for member in self.owners.members:
            member.thaw()
        self._link.thaw()
