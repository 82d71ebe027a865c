"""Nonces of checks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.desk import random_text
from checker.nonce import make_nonce, parse_nonce


@settings(deadline=None)
@given(st.integers(1, 999_999_999))
def test_number_can_be_read_back(number: int) -> None:
    """Whoever answers later names the check by its nonce."""
    assert parse_nonce(make_nonce(number, random_text())) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1-",
        "-1-abcdefghijklmnop",
        "0-abcdefghijklmnop",
        "01-abcdefghijklmnop",
        "1-short",
        "1-abcdefghijklmno p",
        "\u0661-abcdefghijklmnop",
        "1-abcdefghijklmnop\n",
        "9999999999-abcdefghijklmnop",
        "1-" + "a" * 65,
    ],
)
def test_anything_else_has_no_number(text: str) -> None:
    """A made-up nonce is no check number."""
    assert parse_nonce(text) is None
