"""Settings that the rules depend on."""

from collections.abc import Callable

import pytest

from bridge.core.check_rules import CheckCalls, CheckTimes, is_group_name
from bridge.core.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "name", "least", "most"),
    [
        (CheckTimes, "transaction_timeout_ms", 1_000, 86_400_000),
        (CheckTimes, "interval_ms", 1_000, 3_600_000),
        (CheckTimes, "max_checks", 1, 1_000),
        (CheckTimes, "max_lifetime_ms", 1_000, 604_800_000),
        (CheckCalls, "call_timeout_ms", 100, 60_000),
        (CheckCalls, "batch_size", 1, 1_000),
        (CheckCalls, "concurrency", 1, 256),
    ],
)
def test_settings_are_taken_within_their_bounds(make: Callable[..., object], name: str, least: int, most: int) -> None:
    """Both ends belong to them; who goes beyond is told the setting, the bounds and what he said."""
    for value in (least, most):
        assert getattr(make(**{name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError) as caught:
            make(**{name: value})
        assert str(caught.value) == f"{name} must be {least}..{most}, not {value}"


def test_group_names() -> None:
    """What stands in SQL, op messages and URLs without escapes."""
    assert all(map(is_group_name, ["a", "A.b_c-9", "x" * 120]))
    assert not any(map(is_group_name, ["", "x" * 121, "a b", "a/b", 'a"', "é", "a\n", "\x01"]))
