"""Moments as text: RFC 3339 in UTC. Pure."""

from datetime import UTC, datetime
from functools import lru_cache

_LAST_MS = 253_402_300_799_999  # of the year 9999


@lru_cache(maxsize=4096)  # what is in one batch often has one time
def show_time(time_ms: int) -> str:
    """With milliseconds; what lies outside 1970 to 9999 is shown as its nearest end."""
    seconds, millis = divmod(min(max(time_ms, 0), _LAST_MS), 1000)
    return f"{_show(seconds)}.{millis:03d}Z"


def show_second(time_ms: int) -> str:
    """The same without them."""
    return f"{_show(min(max(time_ms, 0), _LAST_MS) // 1000)}Z"


@lru_cache(maxsize=1024)
def _show(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
