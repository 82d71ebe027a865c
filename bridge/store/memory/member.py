"""Membership of a consumer group over the in-memory log."""

from collections.abc import Collection

from bridge.core.errors import StoreUnavailable
from bridge.store.memory.agenda import NEVER
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.errors import BrokerError, make_store_error
from bridge.store.memory.groups import Membership, MemberToken
from bridge.store.memory.link import Link
from bridge.store.message_store import GroupChange
from bridge.store.results import GroupGeneration


class MemoryGroupMember:
    """A member of a group; it heartbeats for as long as its process is not frozen."""

    def __init__(self, cluster: MemoryCluster, link: Link, group: str, topic: str) -> None:
        self._cluster = cluster
        self._link = link
        self._group = group
        self._is_closed = False
        try:
            self._membership: Membership = cluster.groups.join(group, topic, link.client)
        except BrokerError as error:
            raise make_store_error(error) from error

    async def next_change(self) -> GroupChange:
        agenda = self._cluster.agenda
        await self._link.pause()
        while True:
            agenda.run_due()
            if self._is_closed:
                raise StoreUnavailable("the member has left its group")
            if self._membership.changes and not self._link.is_stopped:
                return self._membership.changes.popleft()
            await agenda.wait(self._membership.waiters, NEVER)
            await self._link.pause()

    def release(self, queue_ids: Collection[int]) -> None:
        if not self._link.is_dead:
            self._cluster.groups.release(self._group, self._membership, queue_ids)

    def is_owned(self, queue_id: int) -> bool:
        return queue_id in self._membership.owned

    def get_generation(self) -> GroupGeneration:
        return GroupGeneration(self._group, MemberToken(self._membership.member_id, self._membership.generation))

    async def close(self) -> None:
        self._is_closed = True
        await self._link.pause()
        self._cluster.groups.leave(self._group, self._membership)
        self._membership.waiters.wake()

    def freeze(self) -> None:
        """No more heartbeats; also what becomes of a killed process."""
        self._cluster.groups.freeze(self._group, self._membership)

    def thaw(self) -> None:
        """Heartbeats again."""
        self._cluster.agenda.run_due()
        self._cluster.groups.thaw(self._group, self._membership)
