"""Query parameters and headers, read as strictly as bodies: a misspelt filter would otherwise match everything."""

import math
import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from starlette.datastructures import Headers, QueryParams

from api.problems import INVALID_REQUEST, Rejected, reject
from bridge.core.properties import is_property_text

T = TypeVar("T")

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_INTEGER = re.compile(r"\d{1,9}")
TIME_EXPECTED = "a time as 2026-01-31T12:00:00.000Z"
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,30})?([eE]-\d{1,3})?")


class Query:
    """The parameters of a request. Raises Rejected for one that is unknown, repeated or malformed."""

    def __init__(self, params: QueryParams, known: Collection[str], repeatable: Collection[str] = ()) -> None:
        self._params = params
        for name in params:
            if name not in known:
                raise _invalid(name, f"unknown parameter; known here: {', '.join(sorted(known)) or 'none'}")
            if name not in repeatable and len(params.getlist(name)) > 1:
                raise _invalid(name, "given more than once")

    def text(self, name: str) -> str | None:
        """A text that can be written as UTF-8."""
        value = self._params.get(name)
        if value is not None and not is_property_text(value):
            raise _invalid(name, "holds a byte that is not allowed")
        return value

    def words(self, name: str, parse: Callable[[str], T], allowed: str) -> list[T]:
        """Words from a closed list; repeated, or with commas between."""
        try:
            return [parse(word) for value in self._params.getlist(name) for word in value.split(",") if word]
        except ValueError:
            raise _invalid(name, f"one of {allowed}") from None

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """A number within its bounds."""
        value = self._params.get(name)
        if value is None:
            return default
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= most:
            raise _invalid(name, f"an integer from {least} to {most}")
        return int(value)

    def seconds_as_ms(self, name: str, default_s: float, most_s: float) -> int:
        """A time-out, in milliseconds."""
        value = self._params.get(name)
        if value is None:
            return int(default_s * 1000)
        if not _NUMBER.fullmatch(value) or float(value) > most_s:
            raise _invalid(name, f"seconds from 0 to {most_s:g}")
        return math.ceil(float(value) * 1000)

    def time_ms(self, name: str) -> int | None:
        """A moment in RFC 3339."""
        value = self._params.get(name)
        if value is None:
            return None
        try:
            return parse_time_ms(value)
        except ValueError:
            raise _invalid(name, TIME_EXPECTED) from None

    def optional_flag(self, name: str) -> bool | None:
        """None if it is not given."""
        return self.flag(name) if name in self._params else None

    def flag(self, name: str) -> bool:
        """True for a bare name or `true`."""
        value = self._params.get(name)
        if value is None or value in {"false", "0"}:
            return False
        if value not in {"", "true", "1"}:
            raise _invalid(name, "true or false")
        return True


def parse_time_ms(text: str) -> int:
    """A moment in RFC 3339. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.upper() if _RFC3339.fullmatch(text) else "")
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError as error:
        raise ValueError("outside the calendar") from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def prefers_async(headers: Headers) -> bool:
    """Whether the caller does not want to wait for the end to be settled. Source: RFC 7240 section 4.1."""
    preferences = [
        part.split(";")[0].strip().lower() for value in headers.getlist("prefer") for part in value.split(",")
    ]
    return "respond-async" in preferences


def idempotency_key(headers: Headers) -> str | None:
    """The `Idempotency-Key` header; its value may be quoted as a structured field is."""
    values = headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise reject(INVALID_REQUEST, "two Idempotency-Key headers", ("?Idempotency-Key", "given more than once"))
    value = values[0]
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value


def _invalid(name: str, what: str) -> Rejected:
    return reject(INVALID_REQUEST, what, (f"?{name}", what))
