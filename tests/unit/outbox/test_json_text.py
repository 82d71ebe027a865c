"""Values of messages as JSON."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.client.errors import InvalidMessage
from outbox.client.message import write_json
from tests.support.sdk_messages import DOCUMENTS


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
        b"bytes",
        {"a": object()},
        10**5_000,
    ],
    ids=["name", "nan", "infinity", "decimal nan", "set", "bytes", "object", "digits"],
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
