"""Encryption of secrets in SQL: what is stored, and what of it can be read."""

import pytest

from bridge.core.errors import SecretUnreadable
from bridge.core.keyring import SecretKey, format_secret_key, parse_secret_keys
from bridge.sql.at_rest import SecretCipher

FIRST, SECOND = SecretKey("k1", bytes(range(32))), SecretKey("k2", bytes(32))
CIPHER = SecretCipher([FIRST])
STORED = "{k1}WWJuBAStyIuiR13WSWOwhACC9jWGVKyiJlY4Xl0abzAkkKmgMzmJQQ=="


def test_stored_form_stays() -> None:
    """What one release writes, the next one reads."""
    assert CIPHER.encrypt("k1", b"whsec_canary", "shop", "signing secret") == STORED


def test_text_comes_back_for_its_purpose_alone() -> None:
    """A value that was moved to another group, or is given out as something else, is not taken."""
    stored = CIPHER.encrypt("k1", b"secret", "shop", "signing secret")
    assert CIPHER.decrypt(stored, "shop", "signing secret") == b"secret"
    for purpose in (("bank", "signing secret"), ("shop", "endpoint", "https://x"), ("shop", "signing secret", "")):
        with pytest.raises(SecretUnreadable):
            CIPHER.decrypt(stored, *purpose)


def test_each_changed_character_is_noticed() -> None:
    """Nonce, text and tag."""
    stored = CIPHER.encrypt("k1", b"secret", "shop", "signing secret")
    for at in range(4, len(stored)):
        changed = f"{stored[:at]}{'A' if stored[at] != 'A' else 'B'}{stored[at + 1 :]}"
        with pytest.raises(SecretUnreadable, match="changed in the database"):
            CIPHER.decrypt(changed, "shop", "signing secret")


def test_equal_texts_are_equal_only_at_one_place() -> None:
    """A URL is found again by what is stored; nobody sees that two groups have the same one."""
    made = [CIPHER.encrypt("k1", b"token=1", group, "endpoint", "https://x/") for group in ("shop", "shop", "bank")]
    assert made[0] == made[1] != made[2]
    assert SecretCipher([FIRST._replace(secret=bytes(32))]).encrypt("k1", b"token=1", "shop", "endpoint") != made[0]


def test_what_was_written_without_a_key_is_no_error() -> None:
    """Neither a secret nor a query can look like an encrypted one."""
    for text in ("whsec_AAAA", "token=1", "", "{k1}", "k1}AAAA", "{K1}AAAA", "{k1}AA AA"):
        assert CIPHER.decrypt(text, "shop", "signing secret") is None


def test_missing_and_wrong_keys_are_told_apart() -> None:
    """Each with what to do; no key is ever shown."""
    stored = CIPHER.encrypt("k1", b"secret", "shop", "signing secret")
    with pytest.raises(SecretUnreadable, match="group shop is encrypted with the key k1, which is not in") as missing:
        SecretCipher([SECOND]).decrypt(stored, "shop", "signing secret")
    assert "Add k1:" in missing.value.remedy
    with pytest.raises(SecretUnreadable, match=r"k1 in security[.]keys is another key") as wrong:
        SecretCipher([SECOND._replace(key_id="k1")]).decrypt(stored, "shop", "signing secret")
    assert "Set k1 to the right key" in wrong.value.remedy


def test_keys_are_read_as_they_are_written() -> None:
    """One or several, with any blanks or commas between, as files have them."""
    first, second = format_secret_key(FIRST), format_secret_key(SECOND)
    for between in (",", "\n", " , ", "\r\n"):
        assert parse_secret_keys(f" {first}{between}{second}\n") == [FIRST, SECOND]


@pytest.mark.parametrize(
    "text",
    ["", "k1", "k1:", "k1:short", f"{'k' * 17}:{'A' * 43}", f"K:{'A' * 43}", f"k:{'A' * 43} k:{'B' * 43}", "A" * 43],
)
def test_what_is_no_list_of_keys_is_refused_and_not_shown(text: str) -> None:
    """Two keys with one id would be one key."""
    with pytest.raises(ValueError, match="security new-key") as refused:
        parse_secret_keys(text)
    assert "A" * 43 not in str(refused.value)
