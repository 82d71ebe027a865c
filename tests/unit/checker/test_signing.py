"""Standard Webhooks signatures."""

import base64
import hashlib
import hmac
import time

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from checker.call import sign_call

OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()


def test_signature_is_the_hmac_of_id_time_and_body() -> None:
    """Worked out by hand, so that any receiver of the standard agrees."""
    headers = sign_call([NEW], "check_1", 1_750_000_000_999, '{"a":1}')
    digest = hmac.new(b"n" * 32, b'check_1.1750000000.{"a":1}', hashlib.sha256).digest()
    assert headers == {
        "webhook-id": "check_1",
        "webhook-timestamp": "1750000000",
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def test_signature_is_the_same_in_every_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver compares the time that is signed with the header's."""
    headers = sign_call([NEW], "check_1", 1_750_000_000_999, "{}")
    monkeypatch.setenv("TZ", "UTC+5")
    time.tzset()
    try:
        assert sign_call([NEW], "check_1", 1_750_000_000_999, "{}") == headers
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_both_secrets_sign_while_one_is_rotated(secret: str) -> None:
    """A receiver with either takes the call."""
    body = '{"key":"caf\u00e9"}'
    headers = sign_call([NEW, OLD], "check_1", int(time.time() * 1000), body)
    assert headers is not None
    assert headers["webhook-signature"].count("v1,") == 2
    assert Webhook(secret).verify(body.encode(), dict(headers)) == {"key": "caf\u00e9"}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body.encode() + b" ", dict(headers))


@pytest.mark.parametrize("secrets", [[], ["whsec_"], ["whsec_!!!"], [""], ["whsec_\u00e9"]])
def test_without_a_usable_secret_nothing_is_signed(secrets: list[str]) -> None:
    """So nothing is sent."""
    assert sign_call(secrets, "check_1", 0, "{}") is None


def test_a_broken_secret_does_not_silence_a_good_one() -> None:
    """One of several."""
    headers = sign_call(["whsec_a", NEW], "check_1", 0, "{}")
    assert headers is not None
    assert headers["webhook-signature"].count("v1,") == 1
