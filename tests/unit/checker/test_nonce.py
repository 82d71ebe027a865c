"""Nonces of checks."""

import itertools
from random import SystemRandom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.keyring import BridgeKey, Keyring
from bridge.node import make_random_text
from checker.call import Nonces

OLD, NEW = BridgeKey("1", b"o" * 32), BridgeKey("2", b"n" * 32)


def nonces(*keys: BridgeKey) -> Nonces:
    return Nonces(Keyring(keys), lambda: make_random_text(SystemRandom()))


@given(st.integers(1, 999_999_999))
def test_number_can_be_read_back(number: int) -> None:
    """Whoever answers later names the check by its nonce; each asking has another one."""
    made = nonces(OLD)
    assert made.read(made.begin()("tx", number), "tx") == number
    assert made.begin()("tx", number) != made.begin()("tx", number)


@given(st.text("0Aa_-", min_size=1, max_size=42), st.integers(1, 999_999_999))
def test_nonce_is_read_back_whatever_its_random_text(text: str, number: int) -> None:
    """What proves it is at its end, however long the rest is."""
    made = Nonces(Keyring((OLD,)), lambda: text)
    assert made.read(made.begin()("tx", number), "tx") == number


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
@pytest.mark.parametrize("keys", [(), (OLD,)])
def test_anything_else_has_no_number(keys: tuple[BridgeKey, ...], text: str) -> None:
    """What has not the form of a nonce is no check number, with keys and without."""
    assert nonces(*keys).read(text, "tx") is None


def test_invented_nonce_has_no_number() -> None:
    """Not one made up, not another transaction's, not one whose number or any other character was changed."""
    made = nonces(OLD)
    given_out = made.begin()("tx", 1)
    for invented in ("1-abcdefghijklmnop", "1-" + "a" * 44, "2" + given_out[1:]):
        assert made.read(invented, "tx") is None
    assert made.read(given_out, "other") is None
    for place, character in itertools.product(range(2, len(given_out) - 1), "ab"):  # the last one has spare bits
        changed = given_out[:place] + character + given_out[place + 1 :]
        assert made.read(changed, "tx") == (1 if changed == given_out else None)


def test_nonce_of_either_valid_key_counts() -> None:
    """While one key takes the other's place, an answer to a check of before is not lost."""
    by_old, by_new = nonces(OLD).begin()("tx", 3), nonces(NEW, OLD).begin()("tx", 3)
    assert nonces(NEW, OLD).read(by_old, "tx") == nonces(NEW, OLD).read(by_new, "tx") == 3
    assert nonces(NEW).read(by_old, "tx") is None
