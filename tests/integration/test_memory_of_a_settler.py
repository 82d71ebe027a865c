"""A settler's memory has a ceiling, whatever lies in its queue."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import POSITION_KEY
from bridge.core.record import HalfMessage
from bridge.core.record_codec import encode_half
from bridge.settler.ports import SettlerConfig
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from bridge.store.message_store import GetStatus
from tests.support.bridge_process import BridgeProcess, read_committed, wait_until
from tests.support.broker import BrokerFactory
from tests.support.lone_settler import GROUP, LoneWorld
from tests.support.memory_limit import MIB, limited_memory, peak_bytes
from tests.support.source_tree import ROOT

FULL_SIZE = os.environ.get("FULL_SIZE") == "1"
LIMIT = 512 * MIB
PENDING = 1_024 if FULL_SIZE else 200  # bodies of a mebibyte; each takes four when all are held at once
LARGEST = 8 * MIB - 1_024
TOPIC_BYTES = {"max.message.bytes": str(16 * MIB)}


class Journal(LoneWorld):
    """A journal with large half messages, and another process that settles it."""

    async def prepare_large(self, topic: str, names: Sequence[str], size: int) -> None:
        """Incompressible, a few at a time."""
        for start in range(0, len(names), 8):
            halves = []
            for name in names[start : start + 8]:
                half = HalfMessage(self.id_of(name), GROUP, 1, self._clock.now_ms(), topic)
                halves.append(encode_half(half, [Message(topic, name.encode(), os.urandom(size))], self.topics.half, 0))
            await self._append(halves)

    async def wait_settled(self, kafka: str) -> None:
        """Until the position is at the journal's end."""
        end = (await self._store.get_offsets(self._queue)).maximum
        await asyncio.to_thread(wait_until, lambda: self._read_s(kafka) >= end, seconds=100, name="the position")

    def _read_s(self, kafka: str) -> int:
        found = [json.loads(r.value or b"") for r in read_committed(kafka, [self.topics.op]) if r.key == POSITION_KEY]
        return found[-1]["s"] if found else -1

    async def read_keys(self, topic: str) -> list[bytes | None]:
        """What a committed reader finds, without holding it all."""
        queue, offset, keys = MessageQueue(topic, 0), 0, list[bytes | None]()
        while (got := await self._store.get(queue, offset, 100)).status is not GetStatus.NO_NEW_MSG:
            keys += [message.key for message in got.messages]
            offset = got.next_begin_offset
        return keys


@contextmanager
def limited_settler(kafka: str, prefix: str, log: Path) -> Iterator[BridgeProcess]:
    """A settler of one queue that the kernel kills above the limit, where it may be set one."""
    with limited_memory(LIMIT) as before, log.open("wb") as output:
        command = [*before, sys.executable, "-m", "tests.support.settler_process", kafka, prefix, "1"]
        with BridgeProcess(subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT), 0, log) as it:
            yield it


async def test_gigabyte_committed_at_once_passes_half_a_gigabyte(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """Prepared under one owner, committed at once, read back and published by another; one body is as large as any."""
    kafka = broker_factory({"group.min.session.timeout.ms": "1000"}).bootstrap
    world = await Journal.create(kafka, SettlerConfig(), TOPIC_BYTES)
    topic, names = f"{world.prefix}large", [f"n{n}" for n in range(PENDING)]
    admin = KafkaTopicAdmin(KafkaConfig({"bootstrap.servers": kafka}))
    await admin.create_topic(topic, 1, 1, TOPIC_BYTES)
    await admin.close()
    await world.prepare_large(topic, names, MIB - 1_024)
    await world.prepare_large(topic, ["largest"], LARGEST)
    with limited_settler(kafka, world.prefix, tmp_path / "first.log") as first:
        await world.wait_settled(kafka)
        assert peak_bytes(first.popen.pid) < LIMIT
    await world.commit(*names, "largest")
    with limited_settler(kafka, world.prefix, tmp_path / "second.log") as second:
        await world.wait_settled(kafka)
        assert peak_bytes(second.popen.pid) < LIMIT
    assert sorted(await world.read_keys(topic)) == sorted(name.encode() for name in [*names, "largest"])
    assert (tmp_path / "second.log").read_text().count("queue_taken_over") == 1
    await world.close()
