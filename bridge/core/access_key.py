"""The text of an API key: `obk_`, the id under which it is found, and 256 random bits. Pure.

Of the whole only a hash is stored. A hash that is salted or slow protects what people think up, and adds nothing to
a number that nobody can guess.
"""

import base64
import hashlib

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
