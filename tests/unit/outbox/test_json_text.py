"""Values of messages as JSON."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox.client.errors import InvalidMessage
from outbox.client.message import Message, write_json
from tests.support.sdk_messages import DOCUMENTS


class Kind(Enum):
    """Of an order."""

    GIFT = "gift"


class Rank(IntEnum):
    """Of a customer."""

    FIRST = 1


class Size(StrEnum):
    """Of a parcel."""

    LARGE = "large"


@dataclass
class Line:
    """Of an order."""

    kind: Kind
    amount: Decimal


class Order(BaseModel):
    """As FastAPI has it."""

    id: UUID
    placed_at: datetime
    lines: list[Line]


class Tables(DeclarativeBase):
    """Of a shop."""


class Parcel(Tables):
    """As SQLModel has it, which writes what the object's own dictionary holds."""

    __tablename__ = "parcels"
    model_fields = ("id", "weight")
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[int]

    def model_dump_json(self) -> str:
        """As Pydantic's."""
        return json.dumps({name: vars(self)[name] for name in self.model_fields if name in vars(self)})


ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
PLACED = datetime(2026, 11, 25, 16, 30, tzinfo=timezone(timedelta(hours=1)))
LINE = Line(Kind.GIFT, Decimal("19.90"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (PLACED, '"2026-11-25T16:30:00+01:00"'),
        (PLACED.replace(tzinfo=None, microsecond=5), '"2026-11-25T16:30:00.000005"'),
        (PLACED.date(), '"2026-11-25"'),
        (PLACED.time(), '"16:30:00"'),
        (ID, f'"{ID}"'),
        (Kind.GIFT, '"gift"'),
        (Rank.FIRST, "1"),
        (Size.LARGE, '"large"'),
        (LINE, '{"kind":"gift","amount":19.90}'),
        ({"lines": [LINE], "of": (ID,)}, f'{{"lines":[{{"kind":"gift","amount":19.90}}],"of":["{ID}"]}}'),
        (
            Order(id=ID, placed_at=PLACED, lines=[LINE]),
            f'{{"id":"{ID}","placed_at":"2026-11-25T16:30:00+01:00","lines":[{{"kind":"gift","amount":"19.90"}}]}}',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_services_hold_has_a_form(value: Any, text: str) -> None:
    """A Pydantic model's is its own, as in the answers of its service."""
    assert write_json(value) == text
    assert write_json([value]) == f"[{text}]"
    assert Message("orders", value={"a": value}).value == f'{{"a":{text}}}'.encode()


def test_text_alone_is_no_json() -> None:
    """Also that of an Enum that is a text."""
    assert Message("orders", value=Size.LARGE).value == b"large"
    assert Message("orders", value=Kind.GIFT).value == b'"gift"'


def test_model_of_a_row_is_written_whole_after_a_commit() -> None:
    """SQLAlchemy forgets at a commit what it then loads when somebody looks; SQLModel does not look: {} was sent."""
    engine = sa.create_engine("sqlite://")
    Tables.metadata.create_all(engine)
    with Session(engine) as session:
        parcel = Parcel(id=7, weight=3)
        session.add(parcel)
        session.commit()
        assert write_json(parcel) == '{"id": 7, "weight": 3}'
    engine.dispose()


def test_encoder_is_asked_for_what_is_left() -> None:
    """And what it gives may hold more of it; nothing else reaches it."""
    asked: list[object] = []

    def encode(value: Any) -> object:
        asked.append(value)
        return sorted(value) if isinstance(value, set) else [{value.real}, value.imag]

    assert write_json({"a": 2 + 1j, "b": ID, "c": 1.5}, encode) == f'{{"a":[[2.0],1.0],"b":"{ID}","c":1.5}}'
    assert asked == [2 + 1j, {2.0}]


def test_encoder_that_gives_the_same_again_is_refused() -> None:
    """Instead of an endless loop."""
    with pytest.raises(InvalidMessage, match="nested too deep"):
        write_json(object(), lambda value: value)


@given(DOCUMENTS)
def test_reading_gives_what_was_written(value: Any) -> None:
    """The standard parser is the witness; no byte more than needed stands between the tokens."""
    text = write_json(value)
    assert json.loads(text) == value
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_keep_their_digits(amount: Decimal) -> None:
    """19.90 is not 19.9, and no float comes between."""
    read = json.loads(write_json({"amount": amount}), parse_float=Decimal, parse_int=Decimal)["amount"]
    assert str(read) == str(amount)


@pytest.mark.parametrize(
    "value",
    [
        {1: "a", "1": "b"},
        float("nan"),
        [float("inf")],
        Decimal("NaN"),
        {"a": {1, 2}},
        int,
        Line,
        b"bytes",
        {"a": object()},
        10**5_000,
    ],
    ids=["name", "nan", "infinity", "decimal nan", "set", "class", "dataclass itself", "bytes", "object", "digits"],
)
def test_what_json_has_no_form_for_is_refused(value: Any) -> None:
    """Other writers make two equal names, or a word that is not JSON."""
    with pytest.raises(InvalidMessage):
        write_json(value)


def test_value_inside_itself_is_refused() -> None:
    """And not a crash."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidMessage):
        write_json(value)
