"""Nonces of checks: `<check number>-<random text><MAC>`. Whoever answers by one was really asked, or heard of it."""

import base64
import re
from collections.abc import Callable
from hmac import compare_digest

from bridge.core.keyring import Keyring

NonceMaker = Callable[[str, int], str]
"""Transaction id and check number -> a nonce."""

_PURPOSE = b"check nonce"
_NONCE = re.compile(r"([1-9][0-9]{0,8})-([0-9A-Za-z_-]{16,64})")
_MAC_CHARACTERS = 22


class Nonces:
    """Makes and reads nonces. `random_text`: URL-safe base64, so that each asking has another one.

    Without keys nothing is proved, only the form is read: for tests and trials.
    """

    def __init__(self, keyring: Keyring, random_text: Callable[[], str]) -> None:
        self._keyring = keyring
        self._random_text = random_text

    def make(self, transaction_id: str, check_number: int) -> str:
        """The nonce of one asking of a transaction's check."""
        text = self._random_text()
        key_ids = self._keyring.key_ids[:1]
        return f"{check_number}-{text}" + "".join([self._mac(k, transaction_id, check_number, text) for k in key_ids])

    def read(self, nonce: str, transaction_id: str) -> int | None:
        """The check number; None for what was never given out for this transaction."""
        match = _NONCE.fullmatch(nonce)
        if match is None:
            return None
        number, text, mac = int(match[1]), match[2][:-_MAC_CHARACTERS], match[2][-_MAC_CHARACTERS:]
        valid = [self._mac(key_id, transaction_id, number, text) for key_id in self._keyring.key_ids]
        return number if not valid or any(compare_digest(mac, one) for one in valid) else None

    def _mac(self, key_id: str, transaction_id: str, check_number: int, text: str) -> str:
        mac = self._keyring.begin(key_id, _PURPOSE)
        mac.update(f"{transaction_id}\0{check_number}\0{text}".encode())
        return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")
