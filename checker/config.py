"""Bounds of the checker as a whole, and what it counts."""

from collections import Counter
from dataclasses import dataclass, field

from bridge.core.errors import ConfigError
from bridge.core.measures import ByName, Durations


@dataclass(frozen=True, slots=True)
class CheckerConfig:
    """Limits over all producer groups."""

    total_calls: int = 64  # at once, over all groups
    max_attempts: int = 10  # endpoints tried in one round
    max_call_bytes: int = 1024 * 1024  # body of one call; a larger transaction goes alone
    large_calls: int = 2  # with such a transaction, at once, over all groups
    answer_bytes: int = 64 * 1024
    answer_bytes_per_check: int = 200
    report_wait_ms: int = 30_000  # an answer the settler says nothing about is asked for again after this
    append_retry_ms: int = 5_000  # an answer that could not be appended, or bodies that could not be read
    max_lag_ms: int = 15_000  # a queue read less far than this asks nobody
    tick_ms: int = 250
    close_wait_ms: int = 6_000
    max_objects: int = 4_096  # of a queue: more that wait for their first check are packed

    def __post_init__(self) -> None:
        if self.total_calls < 4:
            raise ConfigError("total_calls below 4 leaves no quarter for groups that do not answer")
        if self.large_calls < 2:
            raise ConfigError("large_calls below 2 leaves none for groups that answer")
        if min(self.max_attempts, self.max_call_bytes, self.answer_bytes, self.tick_ms) < 1:
            raise ConfigError("the checker's limits must be positive")

    def max_answer_bytes(self, checks: int) -> int:
        """What an answer to so many checks may weigh."""
        return self.answer_bytes + self.answer_bytes_per_check * checks


@dataclass(slots=True)
class GroupCheckCounts:
    """The same of one producer group; `calls`: how long calls to its endpoints took."""

    answered: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    calls: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class CheckCounts:
    """Counters since the process began, per transaction unless said otherwise.

    `answered` by resolution word, `unanswered` by failure word; `lateness`: from when a transaction was due to when
    it was asked about; `strange` entries of answers did not count.
    """

    calls: int = 0
    asked: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    unappended: int = 0  # answered, but perhaps not in the journal
    parked: int = 0
    strange: int = 0
    lateness: Durations = field(default_factory=Durations)
    groups: ByName[GroupCheckCounts] = field(default_factory=lambda: ByName(GroupCheckCounts))
    groups_without_endpoint: set[str] = field(default_factory=set)
    errors: int = 0  # bugs survived, rounds that could not be recorded

    def count_answer(self, group: str, word: str) -> None:
        """One transaction was answered about."""
        self.answered[word] += 1
        self.groups.of(group).answered[word] += 1

    def count_silence(self, group: str, word: str) -> None:
        """One transaction was asked about in vain."""
        self.unanswered[word] += 1
        self.groups.of(group).unanswered[word] += 1
