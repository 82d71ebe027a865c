"""Bounds of the checker."""

import pytest

from bridge.core.errors import ConfigError
from checker.call import CheckerConfig


def test_answer_may_grow_with_the_checks() -> None:
    """64 KiB + 200 B for each."""
    assert CheckerConfig().max_answer_bytes(100) == 65_536 + 20_000


def test_useless_limits_are_refused() -> None:
    """A quarter of the slots must be at least one."""
    for wrong in ({"total_calls": 3}, {"max_attempts": 0}, {"tick_ms": 0}, {"max_call_bytes": 0}):
        with pytest.raises(ConfigError):
            CheckerConfig(**wrong)
