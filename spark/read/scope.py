"""What a window can prove: offsets read, the time they were noted, the rules of each producer group."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_DAY_MS = 86_400_000


class QueuePlace(NamedTuple):
    """A partition of a topic."""

    topic: str
    part: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What was read of a partition: from `start` to below `end`.

    `seen`: its end as noted before the journal's, so everything below it was caused by journal records that
    were read. `first_ms`: timestamp of the first record, for journals. `is_whole`: nothing before `start` was
    ever removed or left out. `is_compacted`: records may vanish one by one. `has_append_time`: the topic's own
    clock overrules timestamps.
    """

    start: int
    end: int
    seen: int
    first_ms: int = 0
    is_whole: bool = True
    is_compacted: bool = False
    has_append_time: bool = False


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """When and how often a group may be asked. The defaults are the bounds: they never accuse wrongly."""

    transaction_timeout_ms: int = 1_000
    max_checks: int = 1_000
    max_lifetime_ms: int = 7 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What may take its time before it is a finding.

    `settle_ms`: how old a recorded resolution may be without its op message; `stale_ms`: what is added to a longest
    life; `slack_ms`: how far the brokers' clocks may differ.
    """

    settle_ms: int = 60_000
    stale_ms: int = 3_600_000
    slack_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class Scope:
    """A window. `now_ms`: when its offsets were noted, by which all ages are counted.

    `by_receipts`: records do not name their transactions, and were found by the places that receipts name.
    """

    half_topic: str
    op_topic: str
    parked_topic: str
    extents: Mapping[QueuePlace, OffsetRange]
    now_ms: int
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)
    graces: Tolerances = Tolerances()
    other_groups: GroupTimes = GroupTimes()
    by_receipts: bool = False

    def times_of(self, group: str | None) -> GroupTimes:
        """The rules of a producer group."""
        return self.groups.get(group or "", self.other_groups)

    def journal_of(self, transaction_id: str) -> OffsetRange | None:
        """What was read of the journal queue that the id names."""
        return self.extents.get(QueuePlace(self.half_topic, queue_of(transaction_id)))

    def is_provable(self, transaction_id: str) -> bool:
        """Whether the half message, had there been one, would have been read."""
        journal = self.journal_of(transaction_id)
        if journal is None:
            return False
        born = born_ms(transaction_id)
        if journal.is_whole or born is None:
            return journal.is_whole
        if not journal.first_ms:  # nothing is left of it
            return False
        return journal.first_ms + self.graces.settle_ms < born <= self.now_ms + self.graces.slack_ms


def queue_of(transaction_id: str) -> int:
    """The queue of journal and op topic that an id names."""
    return int(transaction_id[:2], 32)


def born_ms(transaction_id: str) -> int | None:
    """The time inside an id that looks like a UUIDv7; None for most digests, which have none."""
    bits = int(transaction_id[2:], 32) >> 2
    is_uuid7 = bits >> 76 & 0xF == 7 and bits >> 62 & 0x3 == 2
    return bits >> 80 if is_uuid7 else None
