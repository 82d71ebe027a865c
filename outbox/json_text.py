"""Strict, compact JSON. Pure."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from typing import TypeAlias

from outbox.errors import InvalidMessage

JsonValue: TypeAlias = "bool | int | float | Decimal | str | Mapping[str, JsonValue] | Sequence[JsonValue] | None"


def write_json(value: JsonValue) -> str:
    """One document; decimals keep their digits. Raises InvalidMessage for what JSON has no form for."""
    try:
        return _write(value)
    except RecursionError:
        raise InvalidMessage("nested too deep, or in itself") from None


def quote(text: str) -> str:
    """A text as JSON, in quotes; only what must be escaped is."""
    return encode_basestring(text)


def _write(value: JsonValue) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return _write_number(value)
    if isinstance(value, Mapping):
        return "{" + ",".join([f"{_write_name(name)}:{_write(member)}" for name, member in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_write(item) for item in value]) + "]"
    raise InvalidMessage(f"{type(value).__name__} has no form in JSON: give str, bytes, or JSON's own types")


def _write_number(value: float | Decimal) -> str:
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError:
            raise InvalidMessage("an integer with too many digits") from None
    if not isfinite(value):
        raise InvalidMessage("NaN and infinity are not JSON")
    return float.__repr__(value) if isinstance(value, float) else str(value)


def _write_name(name: object) -> str:
    """Others' writers turn 1 into "1", and then two names can be one."""
    if not isinstance(name, str):
        raise InvalidMessage(f"a member's name must be str, not {type(name).__name__}")
    return encode_basestring(name)
