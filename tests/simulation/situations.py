"""What a run has besides calls and faults: operators at work, groups that fetch their checks, a destination that stays
bad, small limits. Drawn from numbers of their own, so that calls and faults of a seed stay what they are. Pure.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from random import Random

from msgspec import Struct

from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes, GroupSettings
from bridge.core.message import Message

CHORES_MS = 16_000  # operators begin within this time
PULL_LEASE_MS = 2_500
ENDPOINT_LEASE_MS = 1_500
SHRUNK_BYTES = 1_000  # what a topic takes that has shrunk
SETTINGS = GroupSettings(
    CheckTimes(transaction_timeout_ms=1_000, interval_ms=1_000, max_checks=3, max_lifetime_ms=10_000),
    CheckCalls(call_timeout_ms=800, batch_size=4, concurrency=2),
)
CHANGED = (
    CheckTimes(transaction_timeout_ms=2_000, interval_ms=1_000, max_checks=2, max_lifetime_ms=10_000),
    CheckTimes(transaction_timeout_ms=1_000, interval_ms=2_000, max_checks=5, max_lifetime_ms=8_000),
)
"""What the settings of a group may be changed to."""
_PULL_SHARE, _CHORES_SHARE, _BAD_SHARE, _SMALL_SHARE = 0.3, 0.4, 0.08, 0.1
_REGISTERED_SHARE = 0.6
_PAUSED_MS = 5_000  # pauses begin within this time
_LIMIT_BYTES = 3_000
_OVERHEAD_BYTES = 200  # of a record, at most, without its headers


class ChoreKind(Enum):
    """What an operator does. All but the last four need a group."""

    CHANGE = "change settings"
    DELETE = "delete group"
    ROTATE = "rotate secret"
    RESUME = "redrive: resume"
    COMMIT = "redrive: commit"
    ROLLBACK = "redrive: roll back"
    STOP = "stop redrives"


class Chore(Struct, frozen=True):
    """One act of an operator, asked of one process. `number` tells it from others; a redrive's reason names it."""

    number: int
    at_ms: int
    kind: ChoreKind
    instance: int
    group: str

    @property
    def reason(self) -> str:
        """What journal and audit say of it."""
        return f"chore {self.number}"


class PauseKind(Enum):
    """What an operator pauses. BRIDGE: prepares of all groups."""

    CHECKS = "checks"
    PREPARES = "prepares"
    BRIDGE = "all prepares"


class Pause(Struct, frozen=True):
    """An operator pauses something of a group, and resumes it so long after he has heard that it is paused."""

    at_ms: int
    for_ms: int
    kind: PauseKind
    instance: int
    group: str


class BadKind(Enum):
    """Why a destination takes nothing any more. SHRUNK: nothing large."""

    DENIED = "denied"
    SHRUNK = "shrunk"
    DELETED = "deleted"


class Bad(Struct, frozen=True):
    """A destination that becomes bad and stays so to the end of the run."""

    topic: str
    kind: BadKind
    at_ms: int

    def refuses(self, message: Message) -> bool:
        """Whether it may refuse this message; for good, once it is bad."""
        is_small = self.kind is BadKind.SHRUNK and is_surely_small(message, SHRUNK_BYTES)
        return message.topic == self.topic and not is_small


class Instance(Struct, frozen=True):
    """A process of a producer group: it registers an endpoint of its own, renews its lease, and goes without a word."""

    group: str
    gone_ms: int


class Situation(Struct, frozen=True):
    """`limit_bytes`: of a message, in all real topics; 0: Kafka's own. `pull_groups` fetch their checks.

    `is_calm`: every process and the log work; only endpoints or one destination fail. Then promise B is measured.
    """

    bad: Bad | None = None
    limit_bytes: int = 0
    pull_groups: tuple[str, ...] = ()
    chores: tuple[Chore, ...] = ()
    registered: Instance | None = None
    is_calm: bool = False
    pauses: tuple[Pause, ...] = ()


def make_situation(
    random: Random, instances: int, groups: Sequence[str], topics: Sequence[str], *, has_sql: bool
) -> Situation:
    """What one run has, by chance."""
    bad = make_bad(random, topics, 5_000) if random.random() < _BAD_SHARE else None
    limit_bytes = _LIMIT_BYTES if random.random() < _SMALL_SHARE else 0
    pull_groups = (random.choice(groups),) if has_sql and random.random() < _PULL_SHARE else ()
    chores: list[Chore] = []
    if has_sql and random.random() < _CHORES_SHARE:
        chores = [_make_chore(random, number, instances, groups) for number in range(random.randint(1, 4))]
    return Situation(bad, limit_bytes, pull_groups, tuple(sorted(chores, key=lambda chore: chore.at_ms)))


def make_instance(random: Random, groups: Sequence[str], *, has_sql: bool) -> Instance | None:
    """An instance with an endpoint lease; most runs have none."""
    if not has_sql or random.random() >= _REGISTERED_SHARE:
        return None
    return Instance(random.choice(groups), random.randrange(500, 5_000))


def make_pauses(random: Random, instances: int, groups: Sequence[str]) -> tuple[Pause, ...]:
    """What operators pause."""
    return tuple(_make_pause(random, instances, groups) for _ in range(random.choice((1, 1, 2, 3))))


def _make_pause(random: Random, instances: int, groups: Sequence[str]) -> Pause:
    kind = random.choices(tuple(PauseKind), (4, 2, 1))[0]
    lengths_ms = (2_500, 8_000, 15_000) if kind is PauseKind.CHECKS else (2_500, 5_000, 8_000)  # a life is 10 s
    for_ms = random.randrange(*random.choice(tuple(pairwise(lengths_ms))))
    return Pause(random.randrange(_PAUSED_MS), for_ms, kind, random.randrange(instances), random.choice(groups))


def make_bad(random: Random, topics: Sequence[str], latest_ms: int) -> Bad:
    """A destination that stays bad."""
    return Bad(random.choice(topics), random.choice(tuple(BadKind)), random.randrange(latest_ms))


def _make_chore(random: Random, number: int, instances: int, groups: Sequence[str]) -> Chore:
    kind = random.choices(tuple(ChoreKind), (3, 3, 1, 3, 2, 2, 2))[0]
    return Chore(number, random.randrange(CHORES_MS), kind, random.randrange(instances), random.choice(groups))


def settings_of(group: str, situation: Situation, times: CheckTimes = SETTINGS.times) -> GroupSettings:
    """The settings of a group with these times."""
    if group not in situation.pull_groups:
        return GroupSettings(times, SETTINGS.calls)
    return GroupSettings(times, CheckCalls(800, 4, 2, CheckMode.PULL))


def possible_times(group: str, situation: Situation) -> list[CheckTimes]:
    """All that a group's settings may have been in the run. A group that was deleted is made anew with the usual."""
    kinds = {chore.kind for chore in situation.chores if chore.group == group}
    changed = CHANGED if ChoreKind.CHANGE in kinds else ()
    return [SETTINGS.times, *changed, *([CheckTimes()] if ChoreKind.DELETE in kinds else [])]


def changed_times(chore: Chore) -> CheckTimes:
    """What the settings are changed to."""
    return CHANGED[chore.number % len(CHANGED)]


def resize(random: Random, messages: Sequence[Message], limit_bytes: int) -> tuple[Message, ...]:
    """The first message comes near the limit from either side."""
    first = messages[0]
    room = limit_bytes - random.choice((-20, 0, 60, 80, 100, 120, 140, 160)) - random.randrange(20)
    value = (first.value or b"") + bytes(max(0, room - _bare_bytes(first)))
    return (Message(first.topic, first.key, value, first.headers, first.queue_id, first.timestamp_ms), *messages[1:])


def is_surely_small(message: Message, limit_bytes: int) -> bool:
    """Whether no topic with this limit may refuse it, however its size is counted."""
    return _bare_bytes(message) + _OVERHEAD_BYTES + 40 * len(message.headers) <= limit_bytes


def _bare_bytes(message: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers


def pick(random: Random, share: float, make: Callable[[Random], int]) -> int | None:
    """A number in so large a share of cases."""
    return make(random) if random.random() < share else None
