"""Values as JSON: strict and compact, with forms for what services hold. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, TypeAlias
from uuid import UUID

from outbox.client.errors import InvalidMessage

Encoder: TypeAlias = Callable[[Any], object]
_FORMS = "JSON's own types, datetime, date, time, UUID, Decimal, Enum, a dataclass or a Pydantic model"


def write_json(value: object, encoder: Encoder | None = None) -> str:
    """One document. Raises InvalidMessage for what JSON has no form for.

    A Decimal keeps its digits. An Enum counts as its value, a dataclass as its fields, a UUID as its text, a datetime,
    date or time as that of ISO 8601. A Pydantic model writes itself. `encoder` is asked for what is left: it gives what
    has a form.
    """
    try:
        return _Writer(encoder).write(value)
    except RecursionError:
        raise InvalidMessage("nested too deep, or in itself") from None


def quote(text: str) -> str:
    """A text as JSON, in quotes; only what must be escaped is."""
    return encode_basestring(text)


class _Writer:
    def __init__(self, encoder: Encoder | None) -> None:
        self._encoder = encoder

    def write(self, value: object) -> str:
        if isinstance(value, str):
            return encode_basestring(value)
        if value is None or isinstance(value, bool):
            return "null" if value is None else "true" if value else "false"
        if isinstance(value, int | float | Decimal):
            return _write_number(value)
        if isinstance(value, Mapping):
            members = [f"{_write_name(name)}:{self.write(member)}" for name, member in value.items()]
            return "{" + ",".join(members) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join([self.write(item) for item in value]) + "]"
        return self._write_object(value)

    def _write_object(self, value: object) -> str:
        if isinstance(value, datetime | date | time | UUID):
            return f'"{value if isinstance(value, UUID) else value.isoformat()}"'
        if isinstance(value, Enum):
            return self.write(value.value)
        if is_dataclass(value) and not isinstance(value, type):
            return self.write({field.name: getattr(value, field.name) for field in fields(value)})
        write_itself = getattr(type(value), "model_dump_json", None)
        if callable(write_itself):
            return str(write_itself(value))
        if self._encoder is not None:
            return self.write(self._encoder(value))
        raise InvalidMessage(f"{type(value).__name__} has no form in JSON: give {_FORMS}, or an encoder")


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
