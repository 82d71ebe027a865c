"""A schedule: everything that is done to the bridge in one simulated run, made of one number. Pure.

schedule = make_schedule(seed=4711)
schedule.calls      what producers and operators do, and when
schedule.faults     what goes wrong, and when
A shorter schedule is made by leaving entries out: no entry depends on another.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random

import msgspec
from msgspec import Struct

from bridge.core.message import Message
from bridge.store.memory.link import StepKind
from tests.simulation.situations import Situation, make_bad, make_instance, make_pauses, make_situation, pick, resize

CALLS_MS = 5_000  # producers begin transactions, and faults begin, within this time
MIN_FAULTS = 5
_DOOM_SHARE = 0.3
_SQL_SHARE = 0.15  # of all runs; they cost twice as much
_CALM_SHARE = 0.03
_PAUSED_SHARE, _PAUSES_SHARE = 0.03, 0.4  # runs that are about pauses; and of all others that have SQL
_JUMPS_MS = 1_500  # of brokers' clocks in calm runs: when every queue has been taken over, whose owners believe them
GROUPS = ("shop", "bank")
CALM_GROUPS = (*GROUPS, "mill", "pier", "yard", "farm", "dock", "mine")  # more dead ones than slots for rounds
TOPICS = {"orders": 2, "credits": 1}
START_MS = 1_750_000_000_000  # of the virtual clock


class Verb(Enum):
    """What somebody asks of the bridge."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    PREPARE_AGAIN = "prepare again"
    CHECK = "check"
    RESUME = "resume"
    ABANDON = "abandon"
    FORCE_COMMIT = "force commit"
    FORCE_ROLLBACK = "force rollback"
    LOOK = "look"


class Local(Enum):
    """What becomes of a producer's local transaction. NEVER: it hangs for ever, so its endpoint says UNKNOWN."""

    COMMITS = "commits"
    ROLLS_BACK = "rolls back"
    NEVER = "never"


class Deed(Struct, frozen=True):
    """One further call about a transaction, so long after its prepare was answered. `instance`: asked there."""

    after_ms: int
    verb: Verb
    instance: int
    group: str | None = None
    is_waited: bool = True
    """False: an end that need only be durable when it is answered."""


class Call(Struct, frozen=True):
    """One transaction, from its prepare on. `decided_ms`: how long its local transaction takes."""

    number: int
    at_ms: int
    group: str
    instance: int
    messages: tuple[Message, ...]
    ordering_key: str | None
    idempotency_key: str | None
    immunity_s: int | None
    is_published: bool
    local: Local
    decided_ms: int
    deeds: tuple[Deed, ...]
    max_checks: int | None = None

    @property
    def is_told_first(self) -> bool:
        """Whether its producer says of its first try that it is one."""
        return self.idempotency_key is not None and self.number % 2 == 0

    @property
    def is_delivered_late(self) -> bool:
        """Whether its first try arrives when nobody waits for it any longer."""
        return self.is_told_first and self.number % 4 == 0

    @property
    def late_ms(self) -> int:
        """How late that is: before a repeat, after it, when the record is void, when settlers have forgotten."""
        return self.number * 7_919 % 16_000

    @property
    def marker(self) -> bytes:
        """What every value of this transaction begins with, and no other's."""
        return b"%d|" % self.number


class FaultKind(Enum):
    """What can go wrong. The members of a Fault that matter are named behind each."""

    KILL = "kill"  # instance, for_ms (down), then started again
    KILL_AT = "kill at a step"  # instance, step, count, chance (>= 0.5: after it), for_ms
    STOP = "stop"  # instance, for_ms
    FREEZE = "freeze"  # instance, for_ms
    FREEZE_AT = "freeze at a step"  # instance, step, count, chance (>= 0.5: after it), for_ms
    LOSE_REQUEST = "lose requests"  # instance, step, chance, for_ms
    LOSE_ANSWER = "lose answers"  # instance, step, chance, for_ms
    DELAY = "delay"  # instance, step, chance, for_ms, delay_ms
    HOLD_END = "hold EndTxn"  # instance, count, delay_ms
    REPEAT_END = "deliver EndTxn again"  # instance, count, delay_ms
    LATE_MARKERS = "late markers"  # topic, for_ms, delay_ms
    LEADERLESS = "no leader"  # topic, for_ms
    DELETE_TOPIC = "delete topic"  # topic, for_ms, then created again
    SHRINK = "shrink max.message.bytes"  # topic, for_ms
    DENY = "deny"  # topic, for_ms
    HANGING = "hanging foreign Kafka transaction"  # topic, for_ms
    COMPACT = "compact"
    RETAIN = "remove the journal below L"
    DELETE_OFFSETS = "delete group offsets"
    SKEW = "set wall clock"  # instance, delay_ms (may be negative)
    SQL_DOWN = "SQL down"  # for_ms
    ENDPOINT = "endpoint"  # group, manner, for_ms
    ABANDON = "an operator gives up what is blocked"  # instance, chance (at each look), for_ms
    SQL_UNKNOWN = "SQL commits of unknown outcome"  # chance, for_ms
    RESTORE_SQL = "restore a backup of SQL"  # for_ms (its age); chance (< 0.5: and rebuild)
    BROKER_CLOCK = "set brokers' clocks"  # delay_ms (may be negative), for_ms; seed: of which topics


class Manner(Enum):
    """How an endpoint behaves."""

    HONEST = "honest"
    REFUSES = "refuses"
    HANGS = "hangs"
    ERROR = "500"
    GARBAGE = "garbage"
    WRONG_NONCE = "wrong nonce"
    LEAVES_OUT = "leaves out"
    SLOW = "slow"
    LIES = "lies"
    UNDECIDED = "says UNKNOWN"


class Fault(Struct, frozen=True):
    """One fault. `seed` decides by chance what happens inside it."""

    at_ms: int
    kind: FaultKind
    seed: int
    instance: int = 0
    topic: str = ""
    group: str = ""
    step: StepKind | None = None
    count: int = 0
    chance: float = 0.0
    for_ms: int = 0
    delay_ms: int = 0
    manner: Manner = Manner.HONEST


class Schedule(Struct, frozen=True):
    """One run. `has_sql`: with projection, and with those calls that need one (keys, looks, operators)."""

    seed: int
    instances: int
    queues: int
    has_sql: bool
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...]
    situation: Situation = Situation()


def make_schedule(seed: int) -> Schedule:
    """The schedule of this number, always the same."""
    random, more = Random(seed), Random(f"{seed}/more")
    instances = random.choice((1, 1, 2, 2, 2, 3))
    queues = random.choice((1, 1, 2))
    has_sql = random.random() < _SQL_SHARE
    if more.random() < _CALM_SHARE:
        return _make_calm(seed, more, instances, queues)
    pausing = Random(f"{seed}/pauses")
    if pausing.random() < _PAUSED_SHARE:
        return _make_paused(seed, pausing, instances, queues)
    calls = [_make_call(random, number, instances, has_sql) for number in range(random.randint(5, 14))]
    faults = [_make_fault(random, instances) for _ in range(random.randint(MIN_FAULTS, 12))]
    faults += _make_doom(Random(seed ^ 0xD), instances)
    situation = make_situation(more, instances, GROUPS, tuple(TOPICS), has_sql=has_sql)
    registered = make_instance(Random(f"{seed}/registered"), GROUPS, has_sql=has_sql)
    situation = msgspec.structs.replace(situation, registered=registered)
    faults += _make_later_faults(more, has_sql=has_sql)
    if has_sql and pausing.random() < _PAUSES_SHARE:
        situation = msgspec.structs.replace(situation, pauses=make_pauses(pausing, instances, GROUPS))
    calls = [_vary(more, call, situation.limit_bytes) for call in calls]
    return Schedule(
        seed, instances, queues, has_sql,
        tuple(sorted(calls, key=lambda call: call.at_ms)), tuple(sorted(faults, key=lambda fault: fault.at_ms)),
        situation,
    )  # fmt: skip


def _vary(more: Random, call: Call, limit_bytes: int) -> Call:
    """Some have a limit of checks of their own, and some messages are about as large as can be."""
    max_checks = pick(more, 0.1, lambda random: random.choice((1, 2, 5)))
    messages = resize(more, call.messages, limit_bytes) if limit_bytes and more.random() < 0.5 else call.messages
    return msgspec.structs.replace(call, max_checks=max_checks, messages=messages)


def _make_calm(seed: int, random: Random, instances: int, queues: int) -> Schedule:
    """B: endpoints of all groups but one are dead or slow, one destination is bad, or clocks jump: all else goes on."""
    what = random.choices(("endpoint", "topic", "clocks"), (4, 4, 2))[0]
    is_endpoint = what == "endpoint"
    calls = []
    for number in range(random.randint(28, 36)):
        call = _make_call(random, number, instances, False)
        group = random.choice((GROUPS[0], *CALM_GROUPS) if is_endpoint else GROUPS)
        deeds = [deed for deed in call.deeds if deed.verb in {Verb.COMMIT, Verb.ROLLBACK} and deed.group == call.group]
        kept = deeds if not is_endpoint or (group == GROUPS[0] and random.random() < 0.5) else ()
        deeds = [msgspec.structs.replace(deed, group=group) for deed in kept]
        calls.append(msgspec.structs.replace(call, group=group, deeds=tuple(deeds)))
    situation = Situation(is_calm=True)
    if is_endpoint:
        groups = CALM_GROUPS[1:]
        faults = [_make_silence(random, group) for group in groups]
    elif what == "clocks":
        faults = [_make_jump(random) for _ in range(MIN_FAULTS)]
    else:
        bad = make_bad(random, tuple(TOPICS), 3_000)
        situation = msgspec.structs.replace(situation, bad=bad if random.random() < 0.5 else None)
        faults = [_make_badness(random, bad.topic) for _ in range(MIN_FAULTS)]
    return Schedule(
        seed, instances, queues, False, tuple(sorted(calls, key=lambda call: call.at_ms)),
        tuple(sorted(faults, key=lambda fault: fault.at_ms)), situation,
    )  # fmt: skip


def _make_silence(random: Random, group: str) -> Fault:
    manner = random.choice((*[Manner.HANGS] * 6, Manner.SLOW, Manner.REFUSES, Manner.ERROR, Manner.GARBAGE))
    for_ms = random.randrange(6_000, 12_000)
    return Fault(random.randrange(2_000), FaultKind.ENDPOINT, 0, group=group, manner=manner, for_ms=for_ms)


def _make_jump(random: Random) -> Fault:
    for_ms, ahead_ms = random.randrange(200, 3_000), random.choice((-20_000, -3_000, -400, 400, 3_000, 20_000))
    at_ms, seed = random.randrange(_JUMPS_MS, CALLS_MS), random.getrandbits(32)
    return Fault(at_ms, FaultKind.BROKER_CLOCK, seed, for_ms=for_ms, delay_ms=ahead_ms)


def _make_paused(seed: int, random: Random, instances: int, queues: int) -> Schedule:
    """Operators pause, every process and the log work, and nobody of the first paused group answers until it is paused:
    so owners remember, rounds come to nothing, claims are not answered, and what a pause must do is judged sharply."""
    calls = [_make_call(random, number, instances, True) for number in range(random.randint(8, 16))]
    pauses = make_pauses(random, instances, GROUPS)
    manner = random.choice((Manner.HANGS, Manner.REFUSES, Manner.ERROR, Manner.GARBAGE, Manner.UNDECIDED))
    for_ms = pauses[0].at_ms + random.randrange(1_000, 4_000)
    faults = [Fault(0, FaultKind.ENDPOINT, 0, group=pauses[0].group, manner=manner, for_ms=for_ms)]
    while len(faults) < MIN_FAULTS:
        kind, at_ms = random.choice(MILD), random.randrange(CALLS_MS)
        faults.append(Fault(at_ms, kind, 0, random.randrange(instances), **_MAKERS[kind][1](random)))
    pull_groups = (pauses[0].group,) if random.random() < 0.4 else ()
    return Schedule(
        seed, instances, queues, True, tuple(sorted(calls, key=lambda call: call.at_ms)),
        tuple(sorted(faults, key=lambda fault: fault.at_ms)), Situation(pauses=pauses, pull_groups=pull_groups),
    )  # fmt: skip


def _make_badness(random: Random, topic: str) -> Fault:
    kind = random.choice((FaultKind.DENY, FaultKind.SHRINK, FaultKind.DELETE_TOPIC))
    return Fault(random.randrange(CALLS_MS), kind, 0, topic=topic, for_ms=random.randrange(200, 3_000))


# --- what producers do ---


def _make_call(random: Random, number: int, instances: int, has_sql: bool) -> Call:
    is_published = random.random() < 0.1
    idempotency_key = f"key-{number}" if has_sql and random.random() < 0.7 else None
    local = random.choices((Local.COMMITS, Local.ROLLS_BACK, Local.NEVER), (6, 3, 1))[0]
    group = random.choice(GROUPS)
    return Call(
        number=number,
        at_ms=random.randrange(CALLS_MS),
        group=group,
        instance=random.randrange(instances),
        messages=tuple(_make_message(random, number, part) for part in range(random.choice((1, 1, 1, 2, 3)))),
        ordering_key=random.choice((None, None, "o-1", "o-2")),
        idempotency_key=idempotency_key,
        immunity_s=random.choice((None, None, None, 3)),
        is_published=is_published,
        local=local,
        decided_ms=random.choice((0, 0, 5, 50, 500, 2_000, 6_000)),
        deeds=()
        if is_published
        else _make_deeds(random, group, local, instances, (has_sql, idempotency_key is not None)),
    )


def _make_message(random: Random, number: int, part: int) -> Message:
    topic = random.choice(tuple(TOPICS))
    key = random.choice((None, b"", b"k1", b"k2", b"k3"))
    headers = [] if random.random() < 0.7 else [("a", b"1"), ("a", None), ("b", b"\x00\xff")][: random.randint(1, 3)]
    return Message(
        topic,
        key,
        _make_value(random, number, part),
        headers,
        random.randrange(TOPICS[topic]) if random.random() < 0.2 else -1,
        START_MS + random.randrange(1_000_000) if random.random() < 0.2 else None,
    )


def _make_value(random: Random, number: int, part: int) -> bytes | None:
    """The first one names the transaction."""
    if part and random.random() < 0.4:
        return random.choice((None, b""))
    return b"%d|%d|" % (number, part) + random.randbytes(random.choice((0, 0, 10, 2_000)))


def _make_deeds(random: Random, group: str, local: Local, instances: int, means: tuple[bool, bool]) -> tuple[Deed, ...]:
    """Mostly one end after the local transaction, or none; and what careless and unlucky callers do besides."""
    deeds: list[Deed] = []
    has_sql, is_keyed = means

    def add(verb: Verb, latest_ms: int, by: str | None = group) -> None:
        is_waited = verb not in {Verb.COMMIT, Verb.ROLLBACK} or random.random() < 0.85
        deeds.append(Deed(random.randrange(latest_ms), verb, random.randrange(instances), by, is_waited))

    own = Verb.COMMIT if local is Local.COMMITS else Verb.ROLLBACK
    other = Verb.ROLLBACK if own is Verb.COMMIT else Verb.COMMIT
    if local is not Local.NEVER and random.random() < 0.65:
        add(own, 3_000)
        while random.random() < 0.25:
            add(own, 5_000)
    if random.random() < 0.12:
        add(other, 5_000)
    if random.random() < 0.05:
        add(random.choice((own, other)), 5_000, random.choice(GROUPS))
    if is_keyed:
        while random.random() < 0.4:
            add(Verb.PREPARE_AGAIN, random.choice((50, 3_000, 10_000)))
    for verb, chance in (
        (Verb.CHECK, 0.1), (Verb.RESUME, 0.15), (Verb.FORCE_COMMIT, 0.05), (Verb.FORCE_ROLLBACK, 0.05),
        (Verb.LOOK, 0.1),
    ):  # fmt: skip
        if has_sql and random.random() < chance:
            add(verb, 12_000, None)
    return tuple(sorted(deeds, key=lambda deed: deed.after_ms))


# --- what goes wrong ---

_LOSABLE = (StepKind.PUT, StepKind.GET, StepKind.INIT, StepKind.ADD_QUEUES, StepKind.APPEND, StepKind.END, None)
_STOPPABLE = (
    StepKind.PUT, StepKind.GET, StepKind.INIT, StepKind.INIT, StepKind.ADD_QUEUES, StepKind.APPEND, StepKind.APPEND,
    StepKind.END, StepKind.END, StepKind.DESCRIBE,
)  # fmt: skip
_SHORT_MS, _LONG_MS = 1_200, 6_000  # the session lasts 2,000


def _make_fault(random: Random, instances: int) -> Fault:
    kind = random.choices(tuple(_MAKERS), [weight for weight, _ in _MAKERS.values()])[0]
    at_ms, seed, instance = random.randrange(CALLS_MS), random.getrandbits(32), random.randrange(instances)
    return Fault(at_ms, kind, seed, instance, **_MAKERS[kind][1](random))


def _make_doom(random: Random, instances: int) -> list[Fault]:
    """In some runs a topic takes nothing for long, and an operator gives up some of what is blocked meanwhile."""
    if random.random() >= _DOOM_SHARE:
        return []
    at_ms, for_ms = random.randrange(CALLS_MS // 2), random.randrange(2_000, 8_000)
    kind = random.choice((FaultKind.DELETE_TOPIC, FaultKind.SHRINK, FaultKind.DENY, FaultKind.LEADERLESS))
    chance, instance = random.choice((0.1, 0.5)), random.randrange(instances)
    return [
        Fault(at_ms, kind, random.getrandbits(32), topic=random.choice(tuple(TOPICS)), for_ms=for_ms),
        Fault(at_ms, FaultKind.ABANDON, random.getrandbits(32), instance, chance=chance, for_ms=for_ms + 1_000),
    ]


def _lasting(random: Random) -> int:
    return random.randrange(20, random.choice((_SHORT_MS, _LONG_MS)))


def _at_step(random: Random) -> dict[str, object]:
    step, count = random.choice(_STOPPABLE), random.choice((0, 0, 1, 2, 5, 12))
    return {"step": step, "count": count, "chance": random.random(), "for_ms": _lasting(random)}


def _of_link(random: Random) -> dict[str, object]:
    step, chance = random.choice(_LOSABLE), random.choice((0.1, 0.5, 1.0))
    return {"step": step, "chance": chance, "for_ms": _lasting(random), "delay_ms": random.choice((5, 200, 1_900))}


def _of_end(random: Random) -> dict[str, object]:
    return {"count": random.choice((0, 0, 1, 3)), "delay_ms": random.choice((50, 1_000, 2_500, 10_000, 30_000))}


def _of_topic(random: Random) -> dict[str, object]:
    return {
        "topic": random.choice(tuple(TOPICS)),
        "for_ms": _lasting(random),
        "delay_ms": random.choice((5, 300, 3_000)),
    }


def _of_instance(random: Random) -> dict[str, object]:
    return {"for_ms": _lasting(random)}


def _of_skew(random: Random) -> dict[str, object]:
    return {"delay_ms": random.choice((-3_600_000, -600_000, 600_000, 3_600_000))}


def _of_endpoint(random: Random) -> dict[str, object]:
    manner = random.choice([manner for manner in Manner if manner is not Manner.HONEST])
    return {"group": random.choice(GROUPS), "manner": manner, "for_ms": random.randrange(500, 8_000)}


def _nothing(_: Random) -> dict[str, object]:
    return {}


_MAKERS: dict[FaultKind, tuple[int, Callable[[Random], dict[str, object]]]] = {
    FaultKind.KILL: (6, _of_instance),
    FaultKind.KILL_AT: (10, _at_step),
    FaultKind.STOP: (3, _of_instance),
    FaultKind.FREEZE: (5, _of_instance),
    FaultKind.FREEZE_AT: (8, _at_step),
    FaultKind.LOSE_REQUEST: (4, _of_link),
    FaultKind.LOSE_ANSWER: (5, _of_link),
    FaultKind.DELAY: (4, _of_link),
    FaultKind.HOLD_END: (6, _of_end),
    FaultKind.REPEAT_END: (4, _of_end),
    FaultKind.LATE_MARKERS: (3, _of_topic),
    FaultKind.LEADERLESS: (2, _of_topic),
    FaultKind.DELETE_TOPIC: (1, _of_topic),
    FaultKind.SHRINK: (2, _of_topic),
    FaultKind.DENY: (2, _of_topic),
    FaultKind.HANGING: (2, _of_topic),
    FaultKind.COMPACT: (3, _nothing),
    FaultKind.RETAIN: (1, _nothing),
    FaultKind.DELETE_OFFSETS: (1, _nothing),
    FaultKind.SKEW: (2, _of_skew),
    FaultKind.SQL_DOWN: (3, _of_instance),
    FaultKind.ENDPOINT: (5, _of_endpoint),
}


_CLOCK_SHARE, _UNKNOWN_SHARE, _RESTORE_SHARE = 0.12, 0.3, 0.15
CLOCKS_AGREE_MS = 500  # a tenth of what brokers' clocks may differ by, as other times here


def _make_later_faults(random: Random, *, has_sql: bool) -> list[Fault]:
    faults = []

    def add(kind: FaultKind, share: float, latest_ms: int, **members: object) -> None:
        if random.random() < share:
            faults.append(Fault(random.randrange(latest_ms), kind, random.getrandbits(32), **members))  # type: ignore[arg-type]

    ahead_ms = random.choice((-20_000, -3_000, -400, -200, 200, 400, 3_000, 20_000))
    add(FaultKind.BROKER_CLOCK, _CLOCK_SHARE, CALLS_MS, delay_ms=ahead_ms, for_ms=_lasting(random))
    if has_sql:
        chance = random.choice((0.2, 0.5, 1.0))
        add(FaultKind.SQL_UNKNOWN, _UNKNOWN_SHARE, CALLS_MS, chance=chance, for_ms=random.randrange(500, 4_000))
        add(FaultKind.RESTORE_SQL, _RESTORE_SHARE, 3_000, chance=random.random(), for_ms=random.randrange(200, 5_000))
    return faults


MILD = (FaultKind.SKEW, FaultKind.COMPACT, FaultKind.DELETE_OFFSETS)
"""What holds nobody up."""


def shorten(schedule: Schedule, calls: Sequence[Call], faults: Sequence[Fault]) -> Schedule:
    """The same run with these calls and faults only."""
    return msgspec.structs.replace(schedule, calls=tuple(calls), faults=tuple(faults))
