"""What clients of RocketMQ sign their requests with: a secret beside each API key (decision 0021).

It is made of the bridge's own key and of what is stored of the API key: nothing more is stored, it ends with either.
"""

from base64 import urlsafe_b64encode
from collections.abc import Sequence

from bridge.core.keyring import Keyring
from bridge.service.access import AccessService, Caller

_PURPOSE = b"request signing"
_SECRET_BYTES = 32


class SigningSecrets:
    """Finds the secrets of keys that are valid now."""

    def __init__(self, access: AccessService, keyring: Keyring) -> None:
        self.access = access
        self._keyring = keyring

    def make(self, key_id: str) -> str | None:
        """The secret of a key, as its owner is told; None if there is no such key."""
        found = self.find(key_id)
        return found[1][0].decode() if found is not None and found[1] else None

    def find(self, key_id: str) -> tuple[Caller, Sequence[bytes]] | None:
        """Whose key this is, and its secret by each of the bridge's keys. Proves nothing."""
        known = self.access.find_key(key_id)
        if known is None:
            return None
        caller, secret_hash = known
        return caller, [self._derive(signer, key_id, secret_hash) for signer in self._keyring.key_ids]

    def _derive(self, signer: str, key_id: str, secret_hash: str) -> bytes:
        mac = self._keyring.begin(signer, _PURPOSE, _SECRET_BYTES)
        mac.update(f"{key_id}\0{secret_hash}".encode())
        return urlsafe_b64encode(mac.digest()).rstrip(b"=")
