"""What an administrator does to real topics under load, and what a deleted topic held."""

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError

from tests.chaos.dump import read_ends, read_topic
from tests.chaos.insist import insist, insist_once
from tests.chaos.orders import COMPACTED, GROWN, REMADE, SMALL, RunFile
from tests.chaos.recorded_calls import now_ms
from tests.chaos.schedule import Done, Kind
from tests.chaos.shop import COMMIT
from tests.chaos.waiting import WaitingRoom
from tests.support.bridge_process import create_topics
from tests.support.cluster_acts import count_partitions, delete_topic, grow_topic, set_topic_config
from tests.support.history.evidence import Gone, RealRecord, Trouble
from tests.support.history.lines import LineReader, LineWriter
from tests.support.history.raw_records import read_real

TOPIC_OF = {Kind.GROW: GROWN, Kind.REMAKE: REMADE, Kind.SHRINK: SMALL, Kind.COMPACT: COMPACTED}
USUAL_CONFIG = {
    "retention.ms": "-1",  # it counts the timestamps that producers ask for, and theirs are old
    "max.message.bytes": "1048588",
    "cleanup.policy": "delete",
    "min.compaction.lag.ms": str(30 * 365 * 86_400_000),  # nothing is ever cleaned
}
_PROBLEMS = {
    Kind.REMAKE: frozenset({"unknown-topic"}),
    Kind.SHRINK: frozenset({"message-too-large"}),
    Kind.COMPACT: frozenset({"invalid-request"}),  # a message without a key
}
_REMEMBERED_MS = 65_000  # a description of a topic is believed so long where brokers do not answer
# Most records are larger. Not below 100: the end of a Kafka transaction is a record of 78 bytes in each partition, and
# where it cannot be written the transactional id hangs until its coordinator starts anew, whatever the limit is by then
_SMALL_BYTES = "200"
_BLOCKED = 20  # commits: that the operator's lot leaves all of them alone does not happen
_PATIENCE_S = 120.0
_PAUSE_S = 0.5
_LEVELS = ("read_uncommitted", "read_committed")


class Remade(msgspec.Struct):
    """A topic that was deleted. `ends`: of its partitions before it was read; later records are in no dump."""

    topic: str
    from_ms: int
    until_ms: int
    ends: dict[int, int]
    dumps: dict[str, str]  # files by isolation level


class Destinations:
    """Of one run; each act returns what there is to remark, with all as usual again."""

    def __init__(self, run: RunFile, config: dict[str, str], replicas: int, stopping: threading.Event) -> None:
        self._run = run
        self._kafka = run.kafka
        self._config = config
        self._replicas = replicas
        self._stopping = stopping
        self._numbers = itertools.count(1)

    def do(self, kind: Kind, seconds: float) -> str:
        """One fault."""
        acts: dict[Kind, Callable[[str, float], str]] = {
            Kind.GROW: self._grow,
            Kind.REMAKE: self._remake,
            Kind.SHRINK: self._shrink,
            Kind.COMPACT: self._compact,
        }
        return acts[kind](TOPIC_OF[kind], seconds)

    def _grow(self, topic: str, _: float) -> str:
        partitions = insist(lambda: count_partitions(self._kafka, topic)) + 1
        insist_once(lambda: grow_topic(self._kafka, topic, partitions), KafkaError.INVALID_PARTITIONS)
        return f"{partitions} partitions"

    def _compact(self, topic: str, seconds: float) -> str:
        with self._configured(topic, "cleanup.policy", "compact"):
            self._stopping.wait(seconds)
        return ""

    def _shrink(self, topic: str, seconds: float) -> str:
        """Some commits are sure to be blocked; room for them comes when the operator has abandoned one at least."""
        room = WaitingRoom(self._run, f"blocked-{next(self._numbers)}", [topic], _make_large())
        room.fill(_BLOCKED, self._stopping.is_set)
        with self._configured(topic, "max.message.bytes", _SMALL_BYTES):
            room.end(COMMIT)
            self._stopping.wait(seconds)
            is_abandoned = self._await_abandoned(room)
        room.close()
        return "commits abandoned meanwhile" if is_abandoned else "no commit abandoned in time"

    def _await_abandoned(self, room: WaitingRoom) -> bool:
        give_up_at = time.monotonic() + _PATIENCE_S
        while not room.has_abandoned():
            if time.monotonic() > give_up_at or self._stopping.wait(_PAUSE_S):
                return False
        return True

    @contextmanager
    def _configured(self, topic: str, name: str, value: str) -> Iterator[None]:
        """A setting is another while the block runs."""
        insist(lambda: set_topic_config(self._kafka, topic, {name: value}))
        try:
            yield
        finally:
            insist(lambda: set_topic_config(self._kafka, topic, {name: USUAL_CONFIG[name]}))

    def _remake(self, topic: str, seconds: float) -> str:
        """What is there before is kept in files: when it is deleted nobody can tell any more."""
        name = f"{topic}-{next(self._numbers)}"
        partitions, from_ms = insist(lambda: count_partitions(self._kafka, topic)), now_ms()
        ends = insist(lambda: read_ends(self._kafka, topic))
        dumps = {
            level: insist(partial(self._dump, topic, level, self._run.folder / f"{name}.{level}.dump.jsonl"))
            for level in _LEVELS  # committed last: it may hold a little more
        }
        insist_once(lambda: delete_topic(self._kafka, topic), KafkaError.UNKNOWN_TOPIC_OR_PART)
        self._stopping.wait(seconds)
        made = ({topic: partitions}, self._config)
        insist_once(lambda: create_topics(self._kafka, *made, replicas=self._replicas), KafkaError.TOPIC_ALREADY_EXISTS)
        gone = Remade(topic, from_ms, now_ms(), ends, dumps)
        LineWriter(self._run.folder / f"{name}.gone.jsonl").write(gone)
        return f"{sum(ends.values()):,} offsets gone, away for {(now_ms() - from_ms) / 1_000:.0f} s"

    def _dump(self, topic: str, level: str, path: Path) -> str:
        path.unlink(missing_ok=True)  # of a try that failed
        writer = LineWriter(path)
        for record in read_real(topic, read_topic(self._kafka, topic, level)):
            writer.write(record)
        return str(path)


def _make_large() -> str:
    """No room for it in a topic that takes small messages, compressed or not."""
    return secrets.token_hex(int(_SMALL_BYTES) + 1)


def find_troubles(done: Iterable[Done]) -> tuple[Trouble, ...]:
    """What api processes may have refused for good, and why."""
    return tuple(
        Trouble(each.target, _PROBLEMS[each.kind], each.at_ms, each.until_ms + _REMEMBERED_MS)
        for each in done
        if each.kind in _PROBLEMS
    )


def read_gone(folder: Path) -> list[Gone]:
    """All deleted topics of a run, in the order of their deletion."""
    found = list(LineReader[Remade](Remade, *sorted(folder.glob("*.gone.jsonl"))))
    return [_gone(each) for each in sorted(found, key=lambda each: each.from_ms)]


def _gone(remade: Remade) -> Gone:
    uncommitted, committed = (_read_dump(remade.dumps[level]) for level in _LEVELS)
    return Gone(remade.topic, remade.from_ms, remade.until_ms, remade.ends, committed, uncommitted)


def _read_dump(name: str) -> list[RealRecord]:
    path = Path(name)
    return list(LineReader[RealRecord](RealRecord, path)) if path.exists() else []
