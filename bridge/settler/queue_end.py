"""Up to which moment a queue has been read to its end: before that, nobody is asked what became of anything."""

import asyncio
from typing import NamedTuple

from bridge.clock import KafkaTime
from bridge.core.errors import StoreError
from bridge.core.message import MessageQueue
from bridge.store.message_store import MessageStore


class _Noted(NamedTuple):
    at_ms: int
    maximum: int


class QueueEnd:
    """Notes the end of a journal queue when asked, beside the settling, and says when it has been read."""

    def __init__(self, store: MessageStore, queue: MessageQueue, time: KafkaTime) -> None:
        self._store = store
        self._queue = queue
        self._time = time
        self._is_wanted = False
        self._noting: asyncio.Task[None] | None = None
        self._noted: _Noted | None = None
        self.read_through_ms = 0

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for `read_through_ms` to rise."""
        return self._is_wanted or self._noted is not None or self._noting is not None

    def ask(self) -> None:
        """Asks for the end to be noted soon."""
        self._is_wanted = True

    def follow(self, s: int) -> None:
        """All records below `s` have been decided."""
        if self._noting is not None and self._noting.done():
            self._noting = None
        if self._noted is not None and s >= self._noted.maximum:
            self.read_through_ms = max(self.read_through_ms, self._noted.at_ms)
            self._noted = None
        if self._is_wanted and self._noted is None and self._noting is None:
            self._is_wanted = False
            self._noting = asyncio.create_task(self._note())

    def close(self) -> None:
        """Stops noting."""
        if self._noting is not None:
            self._noting.cancel()

    async def _note(self) -> None:
        at_ms = self._time.now_ms()
        try:
            self._noted = _Noted(at_ms, (await self._store.get_offsets(self._queue)).maximum)
        except StoreError:
            self._is_wanted = True
