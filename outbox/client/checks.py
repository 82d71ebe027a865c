"""Check calls and their answers on the wire, and signatures of calls. Pure.

Source: the specification "Standard Webhooks", symmetric scheme `v1`.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from outbox.client.errors import CallRefused, OutboxConfigError, SignatureRefused
from outbox.client.listener import Answered, read_answered, tidy_remark

CALL_TYPE = "transaction.check"
_MAX_CHALLENGE = 200
_MAX_REMARKS_BYTES = 32 * 1024  # of the 64 KiB that an answer may have besides its resolutions
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Check:
    """One transaction the bridge asks about. `messages`: as they stand in the call, decimals unrounded.

    `is_trial`: `outbox-bridge group test` asks; the answer counts for nothing, and nothing may be kept of it.
    """

    transaction_id: str
    producer_group: str
    check_number: int
    nonce: str
    born_ms: int
    idempotency_key: str | None = None
    messages: tuple[Mapping[str, object], ...] = ()
    is_trial: bool = False


@dataclass(frozen=True, slots=True)
class CheckCall:
    """All checks of one call; no transaction twice. `challenge`: a text that is wanted back."""

    producer_group: str
    checks: tuple[Check, ...]
    challenge: str | None = None


Tell = Callable[[Check, Answered], None]
"""Takes each answer as soon as it is known; a check without an answer is left out of the reply."""
Answer: TypeAlias = Callable[[Sequence[Check], Tell], None]
AsyncAnswer: TypeAlias = Callable[[Sequence[Check], Tell], Awaitable[None]]


def decode_call(body: bytes) -> CheckCall:
    """The call. Members it does not know are stepped over (a newer bridge). Raises CallRefused."""
    try:
        document = json.loads(
            body.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=Decimal
        )
    except (ValueError, RecursionError) as error:
        raise CallRefused("not JSON") from error
    return read_call(document)


def read_call(document: object) -> CheckCall:
    """A call, read from JSON: what claimers get has the same form. Raises CallRefused."""
    call = _object(document, "call")
    if call.get("type") != CALL_TYPE:
        raise CallRefused(f"type is not {CALL_TYPE}")
    group = _text(call, "producer_group", 120)
    listed = call.get("checks")
    if not isinstance(listed, list):
        raise CallRefused("checks is not a list")
    is_trial = call.get("trial") is True
    checks = tuple(_read_check(_object(entry, "check"), group, is_trial=is_trial) for entry in listed)
    if len({check.transaction_id for check in checks}) != len(checks):
        raise CallRefused("a transaction is named twice")
    challenge = _text(call, "challenge", _MAX_CHALLENGE) if "challenge" in call else None
    return CheckCall(group, checks, challenge)


def encode_echo(challenge: str) -> bytes:
    """The answer to a call that asks about nothing, but wants a text back."""
    return json.dumps({"resolutions": [], "challenge": challenge}, separators=(",", ":")).encode()


def encode_answer(answered: Sequence[tuple[Check, Answered]]) -> bytes:
    """The only body that counts as an answer. Remarks beyond what the bridge reads of a body are left out."""
    resolutions, left = [], _MAX_REMARKS_BYTES
    for check, answer in answered:
        resolution, remark = read_answered(answer)
        entry = {"transaction_id": check.transaction_id, "nonce": check.nonce, "resolution": resolution.name}
        if remark and (left := left - len(json.dumps(remark := tidy_remark(remark))) - len(',"remark":')) >= 0:
            entry["remark"] = remark
        resolutions.append(entry)
    return json.dumps({"resolutions": resolutions}, separators=(",", ":")).encode()


def _read_check(entry: Mapping[str, object], group: str, *, is_trial: bool) -> Check:
    number, key, messages = entry.get("check_number"), entry.get("idempotency_key"), entry.get("messages", [])
    if type(number) is not int or number < 1:
        raise CallRefused("check_number is not a number from 1")
    if key is not None and not isinstance(key, str):
        raise CallRefused("idempotency_key is not a string")
    if not isinstance(messages, list):
        raise CallRefused("messages is not a list")
    return Check(
        transaction_id=_text(entry, "transaction_id", 64),
        producer_group=group,
        check_number=number,
        nonce=_text(entry, "nonce"),
        born_ms=_read_time(_text(entry, "born_time")),
        idempotency_key=key,
        messages=tuple(_object(message, "message") for message in messages),
        is_trial=is_trial,
    )


def _read_time(text: str) -> int:
    """RFC 3339 -> milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError) as error:  # TypeError: no zone
        raise CallRefused("born_time is not RFC 3339") from error


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise CallRefused(f"{what} is not an object")
    return value


def _text(entry: Mapping[str, object], name: str, max_length: int = 200) -> str:
    value = entry.get(name)
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= max_length
        or not value.isascii()
        or not value.isprintable()
    ):
        raise CallRefused(f"{name} is not a short ASCII string")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("repeated name")
    return members


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


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
        # all are compared, so that the time taken does not show which one fits
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
