"""What an administrator does to real topics under load, and what a deleted topic held."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar, overload

import msgspec
from confluent_kafka import KafkaError, KafkaException

from tests.chaos.dump import read_ends, read_topic
from tests.chaos.orders import COMPACTED, GROWN, REMADE, SMALL
from tests.chaos.recorded_calls import now_ms
from tests.chaos.schedule import Done, Kind
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
_PATIENCE_S = 120.0
_PAUSE_S = 0.5
_LEVELS = ("read_uncommitted", "read_committed")

T = TypeVar("T")
Wait = Callable[[float], None]


class Remade(msgspec.Struct):
    """A topic that was deleted. `ends`: of its partitions before it was read; later records are in no dump."""

    topic: str
    from_ms: int
    until_ms: int
    ends: dict[int, int]
    dumps: dict[str, str]  # files by isolation level


class Destinations:
    """Of one run; each act returns what there is to remark, with all as usual again."""

    def __init__(self, kafka: str, folder: Path, config: dict[str, str], replicas: int) -> None:
        self._kafka = kafka
        self._folder = folder
        self._config = config
        self._replicas = replicas
        self._remade = 0

    def do(self, kind: Kind, seconds: float, wait: Wait) -> str:
        """One fault."""
        topic = TOPIC_OF[kind]
        if kind is Kind.GROW:
            partitions = _insist(lambda: count_partitions(self._kafka, topic)) + 1
            _insist(lambda: grow_topic(self._kafka, topic, partitions), KafkaError.INVALID_PARTITIONS)
            return f"{partitions} partitions"
        if kind is Kind.REMAKE:
            return self._remake(topic, seconds, wait)
        changed = {"max.message.bytes": _SMALL_BYTES} if kind is Kind.SHRINK else {"cleanup.policy": "compact"}
        _insist(lambda: set_topic_config(self._kafka, topic, changed))
        wait(seconds)
        _insist(lambda: set_topic_config(self._kafka, topic, {name: USUAL_CONFIG[name] for name in changed}))
        return f"{next(iter(changed))} for a time"

    def _remake(self, topic: str, seconds: float, wait: Wait) -> str:
        """What is there before is kept in files: when it is deleted nobody can tell any more."""
        self._remade += 1
        partitions, from_ms = _insist(lambda: count_partitions(self._kafka, topic)), now_ms()
        ends = _insist(lambda: read_ends(self._kafka, topic))
        dumps = {
            level: _insist(partial(self._dump, topic, level)) for level in _LEVELS
        }  # committed last: it may hold a little more
        _insist(lambda: delete_topic(self._kafka, topic), KafkaError.UNKNOWN_TOPIC_OR_PART)
        wait(seconds)
        made = ({topic: partitions}, self._config)
        _insist(lambda: create_topics(self._kafka, *made, replicas=self._replicas), KafkaError.TOPIC_ALREADY_EXISTS)
        LineWriter(self._folder / f"{topic}-{self._remade}.gone.jsonl").write(
            Remade(topic, from_ms, now_ms(), ends, dumps)
        )
        return f"{sum(ends.values()):,} offsets gone, away for {(now_ms() - from_ms) / 1_000:.0f} s"

    def _dump(self, topic: str, level: str) -> str:
        path = self._folder / f"{topic}-{self._remade}.{level}.dump.jsonl"
        path.unlink(missing_ok=True)  # of a try that failed
        writer = LineWriter(path)
        for record in read_real(topic, read_topic(self._kafka, topic, level)):
            writer.write(record)
        return str(path)


@overload
def _insist(act: Callable[[], T]) -> T: ...


@overload
def _insist(act: Callable[[], T], done_code: int) -> T | None: ...


def _insist(act: Callable[[], T], done_code: int | None = None) -> T | None:
    """Until it is done, for brokers are being tormented. `done_code`: that an earlier try has done it."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return act()
        except KafkaException as error:
            if error.args[0].code() == done_code:
                return None
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_S)


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
