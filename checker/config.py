"""Bounds of the checker as a whole; what belongs to a group is in `bridge.core.config`."""

from dataclasses import dataclass

from bridge.core.errors import ConfigError


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
