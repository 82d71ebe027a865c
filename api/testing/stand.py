"""A bridge that a test opens, uses and closes."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from api.testing.cut_ends import CutEnds
from api.web.services import TransactionCalls
from bridge.store.message_store import MessageStore, TopicAdmin

QUEUES = 2
LOOPBACK = ("127.0.0.0/8", "::1/128")


class Stand(ABC):
    """`open` starts a bridge and serves it on a port of its own, `close` ends it."""

    def __init__(self) -> None:
        self.ends: CutEnds | None = None
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def store(self) -> MessageStore: ...

    @property
    @abstractmethod
    def admin(self) -> TopicAdmin: ...

    async def open(self) -> str:
        """Its address when it takes calls. Raises what kept it from starting."""
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_end(serving: asyncio.Task[None]) -> None:
            if not started.done() and (error := serving.exception()) is not None:
                self._serving = None
                started.set_exception(error)

        self._serving = asyncio.create_task(self._serve(started.set_result))
        self._serving.add_done_callback(on_end)
        return await started

    async def close(self) -> None:
        """Returns when nothing of it is left."""
        if self._serving is not None:
            serving, self._serving = self._serving, None
            self._stop.set()
            await serving

    @abstractmethod
    async def _serve(self, on_started: Callable[[str], None]) -> None:
        """A bridge from its start, when its address is told, until `_stop`."""

    def _put_between(self, calls: TransactionCalls) -> TransactionCalls:
        self.ends = CutEnds(calls)
        return self.ends
