"""A projector, or several, behind a real settler on the in-memory log, over real SQL and on virtual time.

world = make_projector_world(url, queues=2)
async def story() -> None:
    async with world.settlers.settling():
        await world.settlers.prepare("a", Message("orders", b"k", b"v"))
        await world.catch_up()
world.run(story())

SQL runs inside the event loop, since threads know no virtual time.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.errors import SqlUnavailable
from bridge.core.message import MessageQueue
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TimelineEvent, TransactionView
from bridge.node import NodeConfig
from bridge.projector import Projector, ProjectorConfig
from bridge.sql.engine import InlineDatabase
from bridge.sql.search import ProjectionStats, read_stats
from bridge.sql.tables import check_results, group_counts, pending_ages, timeline_events, transaction_keys, transactions
from bridge.sql.transactions import find_many, read_timeline
from tests.support.settler_world import SettlerWorld, make_settler_world

T = TypeVar("T")

PROJECTED = (transactions, transaction_keys, timeline_events, group_counts, pending_ages, check_results)


class DatabaseThatFails(InlineDatabase):
    """`fail_before`, `fail_after`, `lose_before`: so many next writes fail, applied or not.

    `fail_after` and `lose_before` leave the outcome unknown: the first was applied, the second was not.
    """

    fail_before = 0
    fail_after = 0
    lose_before = 0

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        if self.fail_before:
            self.fail_before -= 1
            raise SqlUnavailable("down")
        if self.lose_before:
            self.lose_before -= 1
            raise SqlUnavailable("lost before COMMIT", is_outcome_unknown=True)
        result = await super().run(work, timeout_ms)
        if self.fail_after:
            self.fail_after -= 1
            raise SqlUnavailable("lost in COMMIT", is_outcome_unknown=True)
        return result


class ProjectorWorld:
    """`projector` is the first of those made."""

    def __init__(self, settlers: SettlerWorld, database: DatabaseThatFails, config: ProjectorConfig) -> None:
        self.settlers = settlers
        self.database = database
        self.config = config
        self.projector = self.make_projector("projector")
        self._is_running = False

    @property
    def topics(self) -> InternalTopics:
        return self.settlers.topics

    def make_projector(self, name: str) -> Projector:
        """One more projector process."""
        process, config = self.settlers.memory.start_process(name), NodeConfig(name, self.topics, projector=self.config)
        return self.settlers.make_node(process, name, config, self.database).make_projector()

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Runs a story on the virtual clock, then gives the database back."""

        async def whole() -> None:
            self._is_running = True
            try:
                await story
                await self.projector.close()
            finally:
                self._is_running = False
                self.database.engine.dispose()

        self.settlers.run(whole())

    async def settled(self) -> None:
        """Every queue's position has reached the journal's end; queues without records need none."""
        for queue_id in range(self.topics.queues):
            end = (await self.settlers.memory.store.get_offsets(MessageQueue(self.topics.half, queue_id))).maximum
            if end:
                await self.settlers.settled(queue_id)

    async def catch_up(self, projector: Projector | None = None) -> None:
        """Everything appended so far is settled and projected."""
        await self.settled()
        await self.project(projector)

    async def project(self, projector: Projector | None = None) -> None:
        """Everything decided so far is projected."""
        idle = 0
        while idle < 2:
            result = await (projector or self.projector).run_once()
            idle = 0 if result.chunks else idle + 1

    def query(self, work: Callable[[Connection], T]) -> T:
        try:
            with self.database.engine.begin() as connection:
                return work(connection)
        finally:
            if not self._is_running:  # nobody else would close the connection
                self.database.engine.dispose()

    def view(self, name: str, queue_id: int = 0) -> TransactionView | None:
        """What the projection says of a transaction."""
        transaction_id = self.settlers.id_of(name, queue_id)
        return self.query(lambda c: find_many(c, [transaction_id])).get(transaction_id)

    def timeline(self, name: str, queue_id: int = 0) -> list[TimelineEvent]:
        return self.query(lambda c: read_timeline(c, self.settlers.id_of(name, queue_id)))

    def stats(self) -> ProjectionStats:
        return self.query(lambda c: read_stats(c, self.settlers.memory.clock.now_ms()))

    def dump(self) -> Mapping[str, list[tuple[Any, ...]]]:
        """Every row that comes from Kafka, in a fixed order."""
        return {
            table.name: sorted(map(tuple, self.query(lambda c, t=table: c.execute(sa.select(t)).all())), key=repr)
            for table in PROJECTED
        }


def make_projector_world(
    database_url: str, *, queues: int = 1, config: ProjectorConfig | None = None, **options: Any
) -> ProjectorWorld:
    """A world over an empty, migrated database."""
    settlers = make_settler_world(queues=queues, **options)
    return ProjectorWorld(settlers, DatabaseThatFails(database_url), config or ProjectorConfig())
