"""Secrets of this bridge, and message authentication codes (MACs) made with them. BLAKE2b with a key, 16 bytes."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

MAC_BYTES = 16
SECRET_BYTES = 32


class BridgeKey(NamedTuple):
    """A secret by its id. Two may be valid at a time, so that one can take the other's place."""

    key_id: str
    secret: bytes


class Keyring:
    """The keys that are valid; the first one makes new MACs. Filled once, before anything is made or compared."""

    def __init__(self, keys: Sequence[BridgeKey] = ()) -> None:
        self.load(keys)

    def load(self, keys: Sequence[BridgeKey]) -> None:
        """Takes these keys instead of those it has."""
        self._secrets = {key.key_id: key.secret for key in keys}
        self.key_ids = tuple(self._secrets)

    def begin(self, key_id: str, purpose: bytes) -> "hashlib.blake2b":
        """A hash to be fed. `purpose`, at most 16 bytes: what a MAC was made for proves nothing elsewhere."""
        return hashlib.blake2b(digest_size=MAC_BYTES, key=self._secrets[key_id], person=purpose)
