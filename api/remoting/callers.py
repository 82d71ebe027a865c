"""Who makes a request: RocketMQ's ACL, with keys and grants of the bridge. Source: its AclClientRPCHook and AclUtils.

AccessKey is the id of an API key, SecretKey the secret beside it. A signature is over the values of all other fields,
in the order of their names, and the body.
"""

import hmac
from base64 import b64encode
from collections.abc import Sequence

from api.remoting.frame import RemotingCommand
from bridge.service.access import ANYBODY, Caller
from bridge.service.signing import SigningSecrets

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
_MOST_KNOWN = 10_000


class RemotingCallers:
    """Knows callers by their signatures."""

    def __init__(self, secrets: SigningSecrets) -> None:
        self._secrets = secrets
        self._known: dict[str, tuple[Caller, Sequence[bytes]]] = {}
        self._generation = -1

    @property
    def generation(self) -> int:
        """Moves when anybody's rights may have changed."""
        return self._secrets.access.generation

    def identify(self, request: RemotingCommand) -> Caller | None:
        """Who has signed the request; None: nobody with a key that is valid."""
        fields = request.fields
        key_id = fields.get(ACCESS_KEY)
        if key_id is None:
            return ANYBODY if self._secrets.access.config.is_open else None
        found = self._find(key_id)
        if found is None:
            return None
        caller, secrets = found
        signed = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode() + request.body
        given = fields.get(SIGNATURE, "").encode()
        for secret in secrets:
            if hmac.compare_digest(b64encode(hmac.digest(secret, signed, "sha1")), given):
                self._secrets.access.note_use(caller)
                return caller
        return None

    def renew(self, caller: Caller) -> Caller | None:
        """The same with the rights of now; None if the key is over."""
        if caller.key_id is None:
            return caller
        found = self._find(caller.key_id)
        return None if found is None else found[0]

    def _find(self, key_id: str) -> tuple[Caller, Sequence[bytes]] | None:
        if self._generation != self.generation or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
            self._generation = self.generation
        found = self._known.get(key_id)
        if found is None and (found := self._secrets.find(key_id)) is not None:
            self._known[key_id] = found
        return found
