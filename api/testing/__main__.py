"""Does what `outbox.testing.process` says, a line of JSON for each command, until standard input ends.

python -m api.testing memory|kafka FOLDER
"""

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from api.testing.stand import CutEnds, MemoryStand, Stand, read_published
from bridge.broker.ports import BrokerError
from bridge.core.errors import BridgeError

_LOG_LINES = 1_000  # the newest since the last answer


class Commands:
    """What a test may ask of the bridge that is open; the names are those of the protocol."""

    def __init__(self, make_stand: Callable[[], Stand]) -> None:
        self._make_stand = make_stand
        self._stand = make_stand()
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """A new one; where it takes calls."""
        self._stand = self._make_stand()
        return await self._stand.open()

    async def close(self) -> None:
        """The old one ends while the next one is opened already: a server takes its time for that."""
        closing = asyncio.create_task(self._stand.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def end(self) -> None:
        """Returns when nothing is left."""
        await asyncio.gather(self._stand.close(), *self._closing)

    async def create_topic(self, name: str, partitions: int) -> None:
        await self._stand.admin.create_topic(name, partitions, 1, {})

    async def read(self, topic: str) -> list[dict[str, Any]] | None:
        return await read_published(self._stand.store, self._stand.admin, topic)

    async def cut_ends(self) -> None:
        self._ends.cut()

    async def read_cut(self) -> list[str]:
        return self._ends.left

    async def mend_ends(self) -> list[str]:
        return self._ends.mend()

    async def move(self, for_ms: int) -> None:
        await self._memory.move(for_ms)

    async def move_to(self, until_ms: int) -> None:
        await self._memory.move_to(until_ms)

    def find(self, what: str) -> Callable[..., Awaitable[Any]]:
        """The command of this name."""
        commands = (
            self.open, self.close, self.create_topic, self.read, self.cut_ends, self.read_cut, self.mend_ends,
            self.move, self.move_to,
        )  # fmt: skip
        return next(command for command in commands if command.__name__ == what)

    @property
    def _memory(self) -> MemoryStand:
        assert isinstance(self._stand, MemoryStand)
        return self._stand

    @property
    def _ends(self) -> CutEnds:
        assert self._stand.ends is not None
        return self._stand.ends


class _KeptLog(logging.Handler):
    """The log of the bridge until it is handed to the test's process."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[str, int, str]] = deque(maxlen=_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.name, record.levelno, record.getMessage()))

    def take(self) -> list[tuple[str, int, str]]:
        """Once."""
        lines = [*self._lines]
        self._lines.clear()
        return lines


async def serve(make_stand: Callable[[], Stand], log: _KeptLog) -> None:
    """One command after the other, each answered in a line."""
    commands = Commands(make_stand)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            given = json.loads(line)
            answer: dict[str, Any]
            try:
                answer = {"result": await commands.find(given.pop("what"))(**given)}
            except BrokerError as error:
                answer = {"error": f"no Kafka: {error.reason}. {error.remedy}"}
            except (BridgeError, OSError) as error:
                answer = {"error": str(error)}
            print(json.dumps({**answer, "log": log.take()}), flush=True)  # noqa: T201 - the protocol
    finally:
        await commands.end()


def _choose(kind: str, folder: Path) -> Callable[[], Stand]:
    if kind == "kafka":
        from api.testing.stand import KafkaStand  # noqa: PLC0415  # slow to import

        return lambda: KafkaStand(folder)
    return lambda: MemoryStand(folder)


def main() -> None:
    """Arguments: the kind of bridge and a folder of its own."""
    kind, folder = sys.argv[1:]
    log = _KeptLog()
    logging.basicConfig(level=logging.INFO, handlers=[log])
    structlog.configure(
        processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    asyncio.run(serve(_choose(kind, Path(folder)), log))


if __name__ == "__main__":
    main()
