"""PURE. Programs drawn from a seed.

Left out, because the client decides it by its own clock (a message that is refused takes with it whatever the client
happened to send in the same request, and what was sent again lies behind what was not):
* a message that is refused, beside others for its queue in one call of `put_many`;
* a message that is refused, or for a queue that is not there, beside others of its atomic batch;
* another batch of the owner whose message may have been refused, before it is fenced anew;
* a reader that goes on after the log has forgotten: it may have fetched ahead.

Left out, because Kafka itself is wrong: look-ups by time after compaction, where a whole segment has been emptied.

Left out, because Kafka takes too long over it, or never ends it: compaction of a queue with an open Kafka transaction.
Left out, because the cleaner visits other queues when it likes: compaction of two queues of one topic.
"""

import random
from collections.abc import Callable

from tests.differential.program import (
    ALONE,
    Batch,
    ByTime,
    CommitOffset,
    Compact,
    DropBelow,
    Dump,
    End,
    Fence,
    Follow,
    ForgetGroup,
    Get,
    GetEach,
    GetOffset,
    Hang,
    Join,
    Leave,
    Offsets,
    Place,
    Program,
    Put,
    PutMany,
    Record,
    Step,
)

MIN_STEPS = 10
MAX_STEPS = 20
HOUR_MS = 3_600_000
_KEYS = (b"a", b"b", b"c", b"", None)
_HEADERS = ((), (("h", b"1"), ("h", None), ("g", b"")), (("\u00fc", bytes(range(0, 256, 5))),))
_PLAIN_KINDS = ("plain", "plain", "small", "append_time", "bounded", "keyed")
_NO_QUEUE = 9
_FAR = 60  # an offset nobody has reached


class Generator:
    """One program. Methods named after steps draw one, or None where none is possible now."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._values = 0
        self._fenced: list[tuple[int, int]] = []
        self._hanging: dict[int, tuple[Place, ...]] = {}
        self._hangs = 0
        self._readers: dict[int, Place] = {}
        self._opened_readers = 0
        self._members: dict[int, int] = {}
        self._joined = 0
        self.topics: tuple[str, ...] = ("plain",)

    def make(self) -> Program:
        """The program of this seed."""
        draw = self._random
        profile = draw.choices((self._log, self._owners, self._groups, self._cleaning), (44, 32, 10, 14))[0]
        choices = profile()
        steps: list[Step] = []
        count = draw.randint(MIN_STEPS, MAX_STEPS)
        while len(steps) < count:
            step = draw.choices(list(choices), list(choices.values()))[0]()
            if step is not None:
                steps.append(step)
        return Program(self.topics, (*steps, *self._audit()))

    # --- profiles: steps and their weights ---

    def _log(self) -> "dict[Callable[[], Step | None], int]":
        self.topics = tuple(self._random.sample(_PLAIN_KINDS, 2))
        return {
            self._put: 8, self._put_many: 3, self._hang: 3, self._end: 3, self._get: 4, self._get_each: 2,
            self._offsets: 2, self._by_time: 3, self._follow: 2, self._drop_below: 1, self._commit_offset: 1,
            self._get_offset: 1, self._forget_group: 1,
        }  # fmt: skip

    def _owners(self) -> "dict[Callable[[], Step | None], int]":
        self.topics = ("plain", self._random.choice(("plain", "small", "append_time", "bounded")))
        self._fenced = []
        return {
            self._batch: 9, self._fence: 2, self._put: 2, self._hang: 1, self._end: 1, self._get: 2,
            self._get_each: 1, self._offsets: 1, self._follow: 2,
        }  # fmt: skip

    def _groups(self) -> "dict[Callable[[], Step | None], int]":
        self.topics = (ALONE,)
        return {
            self._join: 4, self._leave: 2, self._batch: 5, self._commit_offset: 4,
            self._get_offset: 4, self._fence: 1, self._forget_group: 1,
        }  # fmt: skip

    def _cleaning(self) -> "dict[Callable[[], Step | None], int]":
        self.topics = (self._random.choice(("compacted", "forgetful")),)
        return {
            self._put: 9, self._tombstone: 3, self._hang: 2, self._end: 3, self._compact: 3, self._get: 1,
            self._get_each: 1, self._follow: 1, self._batch: 2, self._fence: 1,
        }  # fmt: skip

    # --- parts ---

    def _place(self) -> Place:
        return Place(self._random.randrange(len(self.topics)), self._random.choice((0, 0, 0, 1)))

    def _kind(self, at: Place) -> str:
        return self.topics[at.topic]

    def _offset(self) -> int:
        return self._random.choice((0, 0, 1, 2, 3, 4, 5, 6, 8, 10, 13, _FAR))

    def _record(self, at: Place, *, is_sound: bool) -> Record:
        """`is_sound`: one that is taken by its topic for certain."""
        draw, kind = self._random, self._kind(at)
        self._values += 1
        is_keyed = kind in ("keyed", "compacted", "forgetful")
        keys = _KEYS[:4] if is_keyed and is_sound else _KEYS
        value = draw.choice((b"v%d" % self._values,) * 5 + (b"", None))
        key = draw.choice(keys[:3]) if draw.random() < 0.7 else draw.choice(keys)
        timing = {} if kind in ("compacted", "forgetful") else self._timing(kind, is_sound=is_sound)
        padding = self._padding(kind, is_sound=is_sound)
        return Record(at, key, value, draw.choice(_HEADERS) if draw.random() < 0.3 else (), padding=padding, **timing)

    def _timing(self, kind: str, *, is_sound: bool) -> dict[str, int]:
        draw = self._random
        if draw.random() < 0.6:
            return {}
        if not is_sound and draw.random() < 0.15:
            return {"timestamp_ms": 0}
        if is_sound or kind not in ("bounded", "append_time") or draw.random() < 0.5:
            return {"age_ms": draw.choice((HOUR_MS, HOUR_MS * 3 // 2, -HOUR_MS // 2))}
        return {"age_ms": draw.choice((5 * HOUR_MS, -5 * HOUR_MS))}

    def _padding(self, kind: str, *, is_sound: bool) -> int:
        draw = self._random
        if kind == "small" and not is_sound and draw.random() < 0.4:
            return draw.choice((3_000, draw.randrange(1_915, 1_932)))
        return draw.choice((0, 0, 0, 0, 100, 1_200))

    def _records(self, least: int, most: int) -> tuple[Record, ...]:
        return tuple(self._record(self._place(), is_sound=True) for _ in range(self._random.randint(least, most)))

    def _is_open(self, at: Place) -> bool:
        return any(at in places for places in self._hanging.values())

    # --- steps ---

    def _put(self) -> Step:
        at = self._place()
        if self._random.random() < 0.03:
            return Put(Record(Place(0, _NO_QUEUE), b"k", b"v"))
        return Put(self._record(at, is_sound=self._random.random() < 0.6))

    def _tombstone(self) -> Step:
        return Put(Record(self._place(), self._random.choice(_KEYS[:3])))

    def _put_many(self) -> Step:
        records = list(self._records(0, 5))
        if self._random.random() < 0.4:
            at = self._place()
            records = [record for record in records if record.at != at]
            records.insert(self._random.randint(0, len(records)), self._record(at, is_sound=False))
        return PutMany(tuple(records))

    def _hang(self) -> Step:
        self._hangs += 1
        records = tuple(Record(record.at, record.key, record.value, record.headers) for record in self._records(1, 3))
        self._hanging[self._hangs] = tuple(record.at for record in records)
        owner = self._random.choice((None, 0)) if self._fenced else None
        return Hang(self._hangs, records, owner, self._random.randrange(2) if owner is not None else 0)

    def _end(self) -> Step | None:
        if not self._hanging:
            return None
        name = self._random.choice(list(self._hanging))
        del self._hanging[name]
        return End(name, self._random.random() < 0.6)

    def _fence(self) -> Step:
        owner, instance = self._random.choice((0, 0, 0, 1)), self._random.randrange(3)
        self._fenced.append((owner, instance))
        return Fence(owner, instance)

    def _batch(self) -> Step | None:
        draw = self._random
        if not self._fenced:
            return self._fence()
        owner, instance = draw.choice(self._fenced[-2:])
        records = list(self._records(0, 4))
        if draw.random() < 0.03:
            records = [Record(Place(0, _NO_QUEUE), b"k", b"v")]
        elif draw.random() < 0.12:
            records = [self._record(self._place(), is_sound=False)]
            self._fenced = [each for each in self._fenced if each != (owner, instance)]
        during = tuple(self._during() for _ in range(draw.choice((0, 0, 1, 2))))
        return Batch(owner, instance, tuple(records), self._records(1, 2), during)

    def _during(self) -> Step:
        draw = self._random
        if draw.random() < 0.2:
            return self._fence()
        return draw.choice((self._put, self._get, self._offsets, self._get_each))()

    def _get(self) -> Step:
        return Get(self._place(), self._offset(), self._random.choice((1, 2, 3, 50)))

    def _get_each(self) -> Step:
        return GetEach(self._place(), tuple(self._offset() for _ in range(self._random.randint(0, 4))))

    def _offsets(self) -> Step:
        return Offsets(self._place())

    def _by_time(self) -> Step:
        ages = (6 * HOUR_MS, 2 * HOUR_MS, HOUR_MS * 3 // 2, HOUR_MS * 5 // 4, HOUR_MS, HOUR_MS // 2, -HOUR_MS // 3)
        return ByTime(self._place(), self._random.choice((*ages, -HOUR_MS // 2, -HOUR_MS)))

    def _follow(self) -> Step:
        draw = self._random
        if self._readers and draw.random() < 0.5:
            reader = draw.choice(list(self._readers))
            return Follow(reader, self._readers[reader], 0, draw.choice((1, 3, 100)))
        self._opened_readers += 1
        at = self._place()
        offset = self._offset() if draw.random() < 0.4 else 0
        if offset == 0:
            self._readers[self._opened_readers] = at
        return Follow(self._opened_readers, at, offset, draw.choice((1, 3, 100)))

    def _drop_below(self) -> Step:
        at = self._place()
        self._readers = {reader: place for reader, place in self._readers.items() if place != at}
        return DropBelow(at, self._offset())

    def _compact(self) -> Step | None:
        at = Place(self._place().topic, 0)
        if self._is_open(at):
            return None
        self._readers = {reader: place for reader, place in self._readers.items() if place != at}
        return Compact(at)

    def _commit_offset(self) -> Step:
        at = Place(0, self._random.choice((0, 1, _NO_QUEUE))) if self._random.random() < 0.1 else self._place()
        return CommitOffset(self._random.randrange(2), at, self._random.randrange(100), self._random.randrange(2))

    def _get_offset(self) -> Step:
        return GetOffset(self._random.randrange(2), self._place())

    def _forget_group(self) -> Step:
        return ForgetGroup(self._random.randrange(2))

    def _join(self) -> Step | None:
        if len(self._members) >= 3:
            return None
        self._joined += 1
        group = self._random.choice((0, 0, 0, 1))
        self._members[self._joined] = group
        return Join(self._joined, group, 0)

    def _leave(self) -> Step | None:
        if not self._members:
            return None
        member = self._random.choice(list(self._members))
        del self._members[member]
        return Leave(member)

    def _audit(self) -> list[Step]:
        """Everything there is to see in the end."""
        places = [Place(topic, queue_id) for topic in range(len(self.topics)) for queue_id in range(2)]
        seen: list[Step] = []
        for at in places:
            seen += [Offsets(at), Get(at, 0, 100), Dump(at)]
        return seen + ([GetOffset(group, Place(0, 0)) for group in range(2)] if self._joined else [])


def make_program(seed: int) -> Program:
    """The same program for the same seed."""
    return Generator(seed).make()
