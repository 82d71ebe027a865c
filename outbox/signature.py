"""Signatures of calls: Standard Webhooks, HMAC-SHA256 over `id.timestamp.body`. Pure.

Source: the specification "Standard Webhooks", symmetric scheme `v1`.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from outbox.errors import OutboxConfigError, SignatureRefused

TOLERANCE_SECONDS = 300
_MAX_SIGNATURES = 16  # each is compared with each secret
_MIN_SECRET_BYTES = 16
_TIMESTAMP = re.compile(r"[0-9]{1,12}", re.ASCII)


class SignatureVerifier:
    """Knows the secrets that sign now: the new one and, for a day after a rotation, the old one."""

    def __init__(self, secrets: Sequence[str], tolerance_seconds: int = TOLERANCE_SECONDS) -> None:
        """`secrets`: `whsec_` and base64. Raises OutboxConfigError if one cannot be used, or none is given."""
        if isinstance(secrets, str) or not secrets:
            raise OutboxConfigError("secrets must be a list with at least one secret")
        self._keys = [_read_secret(secret) for secret in secrets]
        self._tolerance_seconds = tolerance_seconds

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> None:
        """Header names in lower case. Raises SignatureRefused."""
        webhook_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        signatures = headers.get("webhook-signature", "").split(" ")
        if not webhook_id or not _TIMESTAMP.fullmatch(timestamp) or len(signatures) > _MAX_SIGNATURES:
            raise SignatureRefused("headers of Standard Webhooks are missing or malformed")
        if abs(now_ms // 1000 - int(timestamp)) > self._tolerance_seconds:
            raise SignatureRefused("the timestamp is too far from this machine's clock")
        given = [signature[3:].encode() for signature in signatures if signature.startswith("v1,")]
        signed = b".".join((webhook_id.encode(), timestamp.encode(), body))
        expected = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)) for key in self._keys]
        # all are compared, so that the time taken tells nothing about which one fits
        if not sum(hmac.compare_digest(one, other) for one in expected for other in given):
            raise SignatureRefused("no known secret made any of the signatures")


def _read_secret(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError as error:
        raise OutboxConfigError("a secret is not whsec_ and base64") from error
    if len(key) < _MIN_SECRET_BYTES:
        raise OutboxConfigError(f"a secret has fewer than {_MIN_SECRET_BYTES} bytes")
    return key
