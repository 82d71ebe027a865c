"""Secrets in SQL: AES-256-GCM with keys from the settings. A copy of the database is worth nothing without them.

What is encrypted is `{key id}`, then nonce, text and tag in base64url. Neither a secret nor a URL that may be called
begins like that, so what was written without a key is known, and read as it is. The group and what the text is for are
authenticated: a value that is moved to another row cannot be read.

The nonce is made of the text: equal URLs are equal rows, and no nonce comes twice with different texts.

What the bridge's own key is encrypted with, everything is from then on: an operator changes that in SQL, once all
processes have the keys. Until then each writes what those without keys, or of a version before, can read.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection

from bridge.core.errors import SecretDamaged, SecretUnreadable
from bridge.core.keyring import SecretKey
from bridge.sql.tables import bridge_keys, endpoints

_NONCE_BYTES = 12
_OPTION = "secret_cipher"
_STORED = re.compile(r"\{([a-z0-9_-]{1,16})\}([A-Za-z0-9_=-]+)")
_SIGNING, _QUERY, _BRIDGE_KEY = "signing secret", "endpoint", "bridge key"
_PLAIN_BYTES = 64  # a key of the bridge has no more; nothing encrypted is so short


class _SubKeys(NamedTuple):
    """Two keys made of one: none is used for two things."""

    nonces: bytes
    texts: AESGCM


class SecretCipher:
    """The keys of the settings. Every text has a purpose: a place for which alone it can be decrypted again."""

    def __init__(self, keys: Sequence[SecretKey] = ()) -> None:
        self.first = keys[0].key_id if keys else None
        self._keys = {
            key.key_id: _SubKeys(_derive(key, b"nonces at rest"), AESGCM(_derive(key, b"texts at rest")))
            for key in keys
        }

    def encrypt(self, key_id: str, text: bytes, *purpose: str) -> str:
        """What is stored for it. Raises SecretUnreadable if there is no such key."""
        key, context = self._find(key_id, purpose), _authenticate(purpose)
        nonce = hmac.digest(key.nonces, b"%d\0%b%b" % (len(context), context, text), "sha256")[:_NONCE_BYTES]
        return f"{{{key_id}}}{base64.urlsafe_b64encode(nonce + key.texts.encrypt(nonce, text, context)).decode()}"

    def decrypt(self, stored: str, *purpose: str) -> bytes | None:
        """None: it was written without a key. Raises SecretUnreadable."""
        match = _STORED.fullmatch(stored)
        if match is None:
            return None
        key = self._find(match[1], purpose)
        try:
            sealed = base64.urlsafe_b64decode(match[2])
            return key.texts.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _authenticate(purpose))
        except (InvalidTag, binascii.Error, ValueError):
            raise SecretDamaged(
                f"{_name(purpose)} cannot be decrypted: {match[1]} in security.keys is another key than the one it was "
                "encrypted with, or it was changed in the database",
                f"Set {match[1]} to the right key; if the row was changed, restore it from a backup.",
            ) from None

    def _find(self, key_id: str, purpose: Sequence[str]) -> _SubKeys:
        if (key := self._keys.get(key_id)) is None:
            raise SecretUnreadable(
                f"{_name(purpose)} is encrypted with the key {key_id}, which is not in security.keys",
                f"Add {key_id}:... to security.keys, or to the file that security.keys_file names.",
            )
        return key


def _derive(key: SecretKey, use: bytes) -> bytes:
    return hmac.digest(key.secret, use, "sha256")


def _authenticate(purpose: Sequence[str]) -> bytes:
    return "\0".join(purpose).encode()


def _name(purpose: Sequence[str]) -> str:
    return f"{purpose[1]} of {f'group {purpose[0]}' if purpose[0] else 'this database'}"


def use_cipher(cipher: SecretCipher) -> dict[str, object]:
    """Options of a database whose connections have this cipher."""
    return {_OPTION: cipher}


def cipher_of(conn: Connection) -> SecretCipher:
    """The one of this database."""
    found = conn.get_execution_options().get(_OPTION)
    return found if isinstance(found, SecretCipher) else SecretCipher()


def find_key_in_use(conn: Connection, *, is_to_change: bool = False) -> str | None:
    """With which key secrets are encrypted now; None: with none. It stays so until the end of the SQL transaction."""
    c = bridge_keys.c
    query = sa.select(c.secret).order_by(c.signs.desc(), c.created_ms.desc(), c.key_id).limit(1)
    found = conn.execute(query.with_for_update(read=not is_to_change)).scalar_one_or_none()
    return None if found is None else key_id_of(read_bytes(found))


def read_bytes(stored: bytes) -> str:
    """A key of the bridge as text if it is encrypted, else nothing."""
    return bytes(stored).decode("ascii", "replace") if len(stored) > _PLAIN_BYTES else ""


def key_id_of(stored: str) -> str | None:
    """What it is encrypted with; None: with no key."""
    match = _STORED.fullmatch(stored)
    return match[1] if match else None


def _seal(conn: Connection, key_id: str | None, text: str, *purpose: str) -> str:
    return text if key_id is None else cipher_of(conn).encrypt(key_id, text.encode(), *purpose)


def seal_secret(conn: Connection, key_id: str | None, group: str, secret: str) -> str:
    """What is stored for a group's signing secret. Raises SecretUnreadable."""
    return _seal(conn, key_id, secret, group, _SIGNING)


def load_secret(conn: Connection, group: str, stored: str) -> str:
    """A group's signing secret. Raises SecretUnreadable."""
    text = cipher_of(conn).decrypt(stored, group, _SIGNING)
    return stored if text is None else text.decode()


def seal_bridge_key(conn: Connection, key_id: str | None, name: str, secret: bytes) -> bytes:
    """What is stored for a key that makes MACs. Raises SecretUnreadable."""
    return secret if key_id is None else cipher_of(conn).encrypt(key_id, secret, "", _BRIDGE_KEY, name).encode()


def load_bridge_key(conn: Connection, name: str, stored: bytes) -> bytes:
    """A key that makes MACs. Raises SecretUnreadable."""
    text = cipher_of(conn).decrypt(read_bytes(stored), "", _BRIDGE_KEY, name)
    return bytes(stored) if text is None else text


def stored_url(conn: Connection, group: str, url: str) -> str:
    """A URL of the group as it is stored, or is to be: its query encrypted. Raises SecretUnreadable."""
    place, _, query = url.partition("?")
    if not query:
        return url
    key_id, c = find_key_in_use(conn), endpoints.c
    alike = sa.select(c.url).where(c.producer_group == group, c.url.startswith(f"{place}?", autoescape=True))
    for stored in conn.execute(alike).scalars():
        with suppress(SecretDamaged):
            if load_url(conn, group, stored) == url:
                return str(stored)
    return seal_url(conn, key_id, group, url)


def load_url(conn: Connection, group: str, stored: str) -> str:
    """A URL of the group. Raises SecretUnreadable."""
    place, _, query = stored.partition("?")
    text = cipher_of(conn).decrypt(query, group, _QUERY, place) if query else None
    return stored if text is None else f"{place}?{text.decode()}"


def seal_url(conn: Connection, key_id: str | None, group: str, url: str) -> str:
    """What is stored for a URL with a query. Raises SecretUnreadable."""
    place, _, query = url.partition("?")
    return f"{place}?{_seal(conn, key_id, query, group, _QUERY, place)}"
