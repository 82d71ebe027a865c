"""Secrets of this bridge: MACs made with them, and the seals of op records. BLAKE2b with a key, 16 bytes.

A seal is the last member of the value, `"mac":"<key id>-<32 hexadecimal digits>"`: it costs less than a header, and
whoever does not know it passes it over. The seal covers queue, key and the value without the seal.
"""

import hashlib
from collections.abc import Mapping, Sequence
from hmac import compare_digest
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


_PURPOSE = b"op record"
_MEMBER = b',"mac":"'
_TAIL_BYTES = 2 * MAC_BYTES + 2  # digits, quote, brace
_LONGEST_BYTES = len(_MEMBER) + 16 + 1 + _TAIL_BYTES


class OpSeals:
    """Makes and compares seals. `believed`: by queue, the op offset below which records need none."""

    def __init__(self, keyring: Keyring, believed: Mapping[int, int] | None = None) -> None:
        self.keyring = keyring
        self._begun: dict[tuple[str, int], hashlib.blake2b] = {}
        self.believed: dict[int, int] = dict(believed or {})

    @property
    def is_off(self) -> bool:
        """Whether there are no keys: nothing is sealed, everything is believed. Only for tools that decide nothing."""
        return not self.keyring.key_ids

    def seal(self, queue_id: int, key: bytes, value: bytes) -> bytes:
        """The value with its seal as the last member; `value` is a JSON object that has members."""
        if self.is_off:
            return value
        key_id = self.keyring.key_ids[0]
        return b'%b,"mac":"%b-%b"}' % (value[:-1], key_id.encode(), self._digest(key_id, queue_id, key, value))

    def open(self, queue_id: int, offset: int, key: bytes | None, value: bytes | None) -> bytes | None:
        """The value without its seal; None if neither a seal nor its place proves that it is the owner's."""
        if key is None or value is None:
            return None
        bare, key_id, digest = _split(value)
        if self.is_off or offset < self.believed.get(queue_id, 0):
            return bare
        if key_id not in self.keyring.key_ids or not compare_digest(digest, self._digest(key_id, queue_id, key, bare)):
            return None
        return bare

    def _digest(self, key_id: str, queue_id: int, key: bytes, value: bytes) -> bytes:
        begun = self._begun.get((key_id, queue_id))
        if begun is None:
            begun = self._begun[key_id, queue_id] = self.keyring.begin(key_id, _PURPOSE)
            begun.update(b"%d\0" % queue_id)
        mac = begun.copy()
        mac.update(b"%d\0%b%b" % (len(key), key, value))
        return mac.hexdigest().encode()


def _split(value: bytes) -> tuple[bytes, str, bytes]:
    """Value without seal, key id, digits; without a seal the value as it is and two empty texts."""
    start = value.rfind(_MEMBER, -_LONGEST_BYTES)
    dash = len(value) - _TAIL_BYTES - 1
    if start < 0 or value[dash : dash + 1] != b"-" or not value.endswith(b'"}'):
        return value, "", b""
    return value[:start] + b"}", value[start + len(_MEMBER) : dash].decode("ascii", "replace"), value[dash + 1 : -2]
