"""Sessions of people: what a browser shows instead of the API key that it was given once.

Nothing of them is stored. A session is signed with the bridge's own key and bound to what is stored of the API key, so
every process knows it, nobody can make one from what is in the tables of keys, and it ends with its time or its key.
"""

from collections.abc import Callable
from hmac import compare_digest

from bridge.core.access_key import read_key_id
from bridge.core.keyring import Keyring
from bridge.service.access import AccessService, Caller

LIFE_S = 8 * 3_600
_PURPOSE = b"console session"
_MAC_BYTES = 32


class Sessions:
    """Begins sessions and knows them again."""

    def __init__(self, access: AccessService, keyring: Keyring, now_ms: Callable[[], int]) -> None:
        self._access = access
        self._keyring = keyring
        self._now_ms = now_ms

    def begin(self, key: str) -> str | None:
        """The text of a new session for whoever has this API key; None if nobody has."""
        key_id = read_key_id(key)
        if key_id is None or not self._keyring.key_ids or self._access.identify(key) is None:
            return None
        known = self._access.find_key(key_id)
        if known is None:
            return None
        until_s = self._now_ms() // 1000 + LIFE_S
        signer = self._keyring.key_ids[0]
        return f"{key_id}.{until_s}.{signer}.{self._sign(signer, key_id, until_s, known[1])}"

    def find(self, text: str) -> Caller | None:
        """Whose session this is; None if it is none, or over."""
        key_id, _, rest = text.partition(".")
        until, _, rest = rest.partition(".")
        signer, _, mac = rest.partition(".")
        if signer not in self._keyring.key_ids or not (until.isascii() and until.isdigit() and len(until) < 12):
            return None
        known = self._access.find_key(key_id)
        if known is None or int(until) * 1000 <= self._now_ms():
            return None
        is_ours = compare_digest(mac.encode(), self._sign(signer, key_id, int(until), known[1]).encode())
        return known[0] if is_ours else None

    def _sign(self, signer: str, key_id: str, until_s: int, secret_hash: str) -> str:
        mac = self._keyring.begin(signer, _PURPOSE, _MAC_BYTES)
        mac.update(f"{key_id}\0{until_s}\0{secret_hash}".encode())
        return mac.hexdigest()
