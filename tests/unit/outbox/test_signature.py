"""Signatures, against the bridge's own signing."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checker.call import sign_call
from outbox.client.checks import SignatureVerifier
from outbox.client.errors import OutboxConfigError, SignatureRefused

NOW_MS = 1_750_000_000_000
OLD, NEW, OTHER = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3)]


def signed(body: str, *secrets: str, at_ms: int = NOW_MS) -> dict[str, str]:
    headers = sign_call(secrets, "msg_1", at_ms, body)
    assert headers is not None
    return dict(headers)


@pytest.mark.parametrize(
    ("signing", "known"), [([OLD], [OLD]), ([OLD, NEW], [OLD]), ([OLD, NEW], [NEW]), ([NEW], [OLD, NEW])]
)
def test_any_common_secret_is_enough(signing: list[str], known: list[str]) -> None:
    """Either side may be the first to hear of a rotation."""
    SignatureVerifier(known).verify(signed("{}", *signing), b"{}", NOW_MS)


def test_other_secrets_are_refused() -> None:
    """However many signatures there are."""
    with pytest.raises(SignatureRefused):
        SignatureVerifier([OLD, NEW]).verify(signed("{}", OTHER), b"{}", NOW_MS)


@pytest.mark.parametrize("seconds", [-301, 301])
def test_replay_is_refused_after_five_minutes(seconds: int) -> None:
    """A call that was overheard is of no use later; nor is one from the future."""
    verifier = SignatureVerifier([OLD])
    headers = signed("{}", OLD)
    verifier.verify(headers, b"{}", NOW_MS + seconds // 301 * 300_000)
    with pytest.raises(SignatureRefused):
        verifier.verify(headers, b"{}", NOW_MS + seconds * 1000)


@given(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), st.text(max_size=60))
def test_no_header_can_be_changed(name: str, text: str) -> None:
    """Left out, emptied or replaced by anything."""
    headers = signed("{}", OLD)
    if headers[name] == text:
        return
    with pytest.raises(SignatureRefused):
        SignatureVerifier([OLD]).verify({**headers, name: text}, b"{}", NOW_MS)
    del headers[name]
    with pytest.raises(SignatureRefused):
        SignatureVerifier([OLD]).verify(headers, b"{}", NOW_MS)


def test_body_is_signed_too() -> None:
    """Byte by byte."""
    with pytest.raises(SignatureRefused):
        SignatureVerifier([OLD]).verify(signed("{}", OLD), b"{} ", NOW_MS)


def test_flood_of_signatures_is_not_compared() -> None:
    """The work of a forged call has a limit."""
    headers = signed("{}", OLD)
    headers["webhook-signature"] += " v1,x" * 16
    with pytest.raises(SignatureRefused):
        SignatureVerifier([OLD]).verify(headers, b"{}", NOW_MS)


@pytest.mark.parametrize(
    "secrets", [[], OLD, ["whsec_"], ["whsec_???"], ["whsec_" + base64.b64encode(b"short").decode()]]
)
def test_unusable_secrets_are_refused_at_start(secrets: list[str]) -> None:
    """And not at the first check, hours later."""
    with pytest.raises(OutboxConfigError):
        SignatureVerifier(secrets)
