"""Signatures of calls: Standard Webhooks, with every secret that signs now."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook


def sign_call(secrets: Sequence[str], webhook_id: str, now_ms: int, body: str) -> Mapping[str, str] | None:
    """The three headers of a signed call; None if no secret can be used. `now_ms`: wall clock."""
    timestamp = datetime.fromtimestamp(now_ms // 1000, UTC)
    signatures = [webhook.sign(webhook_id, timestamp, body) for secret in secrets if (webhook := _open(secret))]
    if not signatures:
        return None
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(now_ms // 1000),
        "webhook-signature": " ".join(signatures),
    }


def can_sign(secrets: Sequence[str]) -> bool:
    """Whether any secret can be used."""
    return any(_open(secret) for secret in secrets)


def _open(secret: str) -> Webhook | None:
    try:
        return Webhook(secret)
    except (ValueError, EmptyWebhookSecretError):
        return None
