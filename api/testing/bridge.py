"""The whole bridge in one process on the in-memory log: a node in all its roles, and the HTTP application over it.

What it stands on is given to it: tests of ours run it on virtual time, tests of users behind a socket.
"""

from collections.abc import Callable
from functools import partial

from api.web.app import create_app
from api.web.services import Services
from bridge.core.topics import InternalTopics
from bridge.node import Backing, Node, NodeConfig, Roles
from bridge.projector import ProjectorConfig
from bridge.seals import start_seals
from bridge.service.transactions import TransactionService
from bridge.store.positions import begin_queues
from bridge.topology import migrate_topics

# One process writes alone and nothing fails here: what only looks after others need not look often.
_RARELY_MS = 60_000
_PROJECTING = ProjectorConfig(max_wait_ms=10_000, lease_ms=3 * _RARELY_MS, purge_interval_ms=_RARELY_MS)
_LOOK_INTERVAL_MS = 10

Face = Callable[[TransactionService], TransactionService]


class MemoryBridge:
    """One bridge, alive from `start` to `stop`. `face`: what stands between the HTTP application and the service."""

    def __init__(self, backing: Backing, topics: InternalTopics, face: Face = lambda calls: calls) -> None:
        self._backing = backing
        self._topics = topics
        config = NodeConfig("bridge", topics, projector=_PROJECTING, refresh_ms=_RARELY_MS, look_ms=_RARELY_MS)
        self._node = node = Node(backing, config)
        self.app = create_app(
            Services(
                face(node.transactions),
                node.search,
                node.parked,
                node.groups,
                node.claims,
                node.nonces,
                now_ms=backing.clock.now_ms,
            )
        )

    async def start(self) -> None:
        """From `migrate` on; returns when calls are taken."""
        backing, topics, now_ms = self._backing, self._topics, self._backing.clock.now_ms()
        begin = partial(begin_queues, backing.store, backing.owners, topics)
        await migrate_topics(backing.admin, backing.database, topics, now_ms, begin)
        await start_seals(backing.store, backing.database, topics, now_ms)
        await self._node.start(Roles(api=True, settler=True, projector=True))
        while not (self._node.is_ready and self._node.settler and len(self._node.settler.status) == topics.queues):
            await backing.clock.sleep_ms(_LOOK_INTERVAL_MS)

    async def stop(self) -> None:
        """Nothing is left that would complain of being forgotten."""
        await self._node.stop()
