"""Keys that encrypt secrets in SQL, as the setting `security.keys` has them."""

import base64
import re
from typing import NamedTuple

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
