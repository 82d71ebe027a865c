"""Keys: those of the interface, those that encrypt in SQL, and MACs of this bridge with the seals of op records.

A seal is the last member of the value, `"mac":"<key id>-<32 hexadecimal digits>"`: it costs less than a header, and
whoever does not know it passes it over. The seal covers queue, key and the value without the seal.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import NamedTuple

from bridge.core.transaction import TRANSACTION_ID_LENGTH

# --- the text of an API key: `obk_`, the id under which it is found, and 256 random bits ---
# Of the whole only a hash is stored. A hash that is salted or slow protects what people think up, and adds nothing to a
# number that nobody can guess.

_PREFIX = "obk_"
_ID_BYTES, _ID_CHARS = 5, 8
_SECRET_BYTES, _SECRET_CHARS = 32, 43
RANDOM_BYTES = _ID_BYTES + _SECRET_BYTES


def make_key_text(random: bytes) -> str:
    """A key made of so many random bytes."""
    key_id = base64.b32encode(random[:_ID_BYTES]).decode().lower()
    return f"{_PREFIX}{key_id}_{base64.urlsafe_b64encode(random[_ID_BYTES:RANDOM_BYTES]).decode().rstrip('=')}"


def read_key_id(text: str) -> str | None:
    """The id in a key; None if the text is not a key."""
    key_id, underscore, secret = text.removeprefix(_PREFIX).partition("_")
    is_key = text.startswith(_PREFIX) and len(key_id) == _ID_CHARS and underscore and len(secret) == _SECRET_CHARS
    return key_id if is_key and text.isascii() else None


def hash_key(text: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


# --- keys that encrypt secrets in SQL, as the setting `security.keys` has them ---

KEY_BYTES = 32
_KEY = re.compile(r"([a-z0-9_-]{1,16}):([A-Za-z0-9_-]{43})=?")


class SecretKey(NamedTuple):
    """A key by its id, which is stored with what it encrypts."""

    key_id: str
    secret: bytes


def parse_secret_keys(text: str) -> list[SecretKey]:
    """One after the other, the one to encrypt with first. Raises ValueError, which shows none of them."""
    matches = [_KEY.fullmatch(word) for word in re.split(r"[\s,]+", text.strip())]
    keys = [SecretKey(match[1], base64.urlsafe_b64decode(match[2] + "=")) for match in matches if match]
    if len(keys) < len(matches) or len({key.key_id for key in keys}) < len(keys):
        raise ValueError("not a list of different `id:key` as `outbox-bridge security new-key` makes them")
    return keys


def format_secret_key(key: SecretKey) -> str:
    """As the setting has it."""
    return f"{key.key_id}:{base64.urlsafe_b64encode(key.secret).decode().rstrip('=')}"


# --- secrets of this bridge: MACs made with them, and the seals of op records. BLAKE2b with a key, 16 bytes ---

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

    def begin(self, key_id: str, purpose: bytes, size: int = MAC_BYTES) -> "hashlib.blake2b":
        """A hash to be fed. `purpose`, at most 16 bytes: what a MAC was made for proves nothing elsewhere."""
        return hashlib.blake2b(digest_size=size, key=self._secrets[key_id], person=purpose)


_PURPOSE = b"op record"
_ID_LENGTH = b"%d\0" % TRANSACTION_ID_LENGTH
_MEMBER = b',"mac":"'
_TAIL_BYTES = 2 * MAC_BYTES + 2  # digits, quote, brace
_LONGEST_BYTES = len(_MEMBER) + 16 + 1 + _TAIL_BYTES


class OpSeals:
    """Makes and compares seals. `believed`: by queue, the op offset below which records need none."""

    def __init__(self, keyring: Keyring, believed: Mapping[int, int] | None = None) -> None:
        self.keyring = keyring
        self._sealers: dict[tuple[str, int], _Sealer] = {}
        self._usual: dict[int, _Sealer] = {}  # by queue: what made the last seal that was looked at
        self.believed: dict[int, int] = dict(believed or {})

    @property
    def is_off(self) -> bool:
        """Whether there are no keys: nothing is sealed, everything is believed. Only for tools that decide nothing."""
        return not self.keyring.key_ids

    def seal(self, queue_id: int, key: bytes, value: bytes) -> bytes:
        """The value with its seal as the last member; `value` is a JSON object that has members."""
        if self.is_off:
            return value
        sealer = self._sealer(self.keyring.key_ids[0], queue_id)
        return b'%b%b%b"}' % (value[:-1], sealer.member, sealer.digest(key, value))

    def open(self, queue_id: int, offset: int, key: bytes | None, value: bytes | None) -> bytes | None:
        """The value without its seal; None if neither a seal nor its place proves that it is the owner's."""
        if key is None or value is None:
            return None
        usual = self._usual.get(queue_id)
        if usual is not None and value.startswith(usual.member, start := len(value) - usual.length):
            bare = value[:start] + b"}"
            if value.endswith(b'"}') and compare_digest(value[-_TAIL_BYTES:-2], usual.digest(key, bare)):
                return bare
        bare, key_id, digest = _split(value)
        if self.is_off or offset < self.believed.get(queue_id, 0):
            return bare
        if key_id not in self.keyring.key_ids:
            return None
        if not compare_digest(digest, self._sealer(key_id, queue_id).digest(key, bare)):
            return None
        self._usual[queue_id] = self._sealer(key_id, queue_id)
        return bare

    def _sealer(self, key_id: str, queue_id: int) -> "_Sealer":
        known = self._sealers.get((key_id, queue_id))
        if known is None:
            known = self._sealers[key_id, queue_id] = _Sealer(self.keyring, key_id, queue_id)
        return known


class _Sealer:
    """Makes the seals of one queue with one key."""

    __slots__ = ("_begun", "length", "member")

    def __init__(self, keyring: Keyring, key_id: str, queue_id: int) -> None:
        self.member = _MEMBER + key_id.encode() + b"-"
        self.length = len(self.member) + _TAIL_BYTES
        self._begun = keyring.begin(key_id, _PURPOSE)
        self._begun.update(b"%d\0" % queue_id)

    def digest(self, key: bytes, value: bytes) -> bytes:
        mac = self._begun.copy()
        mac.update((_ID_LENGTH if len(key) == TRANSACTION_ID_LENGTH else b"%d\0" % len(key)) + key + value)
        return mac.hexdigest().encode()


def _split(value: bytes) -> tuple[bytes, str, bytes]:
    """Value without seal, key id, digits; without a seal the value as it is and two empty texts."""
    start = value.rfind(_MEMBER, -_LONGEST_BYTES)
    dash = len(value) - _TAIL_BYTES - 1
    if start < 0 or value[dash : dash + 1] != b"-" or not value.endswith(b'"}'):
        return value, "", b""
    return value[:start] + b"}", value[start + len(_MEMBER) : dash].decode("ascii", "replace"), value[dash + 1 : -2]
