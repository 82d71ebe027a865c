"""Checks and answers on the wire: `transaction.check`, its nonce, its signature. Strict both ways."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hmac import compare_digest
from types import MappingProxyType
from typing import NamedTuple

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from bridge.core.keyring import Keyring
from bridge.core.message import Header, JsonText, refuse_constant, unique_members, write_json, write_message
from bridge.core.moment import show_time
from bridge.core.properties import is_property_text
from bridge.core.record import MAX_REMARK_CHARS, Resolution
from bridge.core.trace_context import find_trace
from bridge.core.transaction import Transaction
from bridge.store.halves import LoadedHalf

NonceMaker = Callable[[str, int], str]
"""Transaction id and check number -> a nonce."""

_PURPOSE = b"check nonce"
_NONCE = re.compile(r"([1-9][0-9]{0,8})-([0-9A-Za-z_-]{16,64})")
_MAC_CHARACTERS = 22


class Nonces:
    """Makes and reads nonces. `random_text`: URL-safe base64, so that each asking has another one.

    Without keys nothing is proved, only the form is read: for tests and trials.
    """

    def __init__(self, keyring: Keyring, random_text: Callable[[], str]) -> None:
        self._keyring = keyring
        self._random_text = random_text

    def begin(self) -> NonceMaker:
        """Makes the nonces of a round, each for one asking of a transaction's check: the hashes take their key once."""
        hashes = [self._keyring.begin(key_id, _PURPOSE) for key_id in self._keyring.key_ids[:1]]

        def make(transaction_id: str, check_number: int) -> str:
            text = self._random_text()
            macs = [_mac(begun.copy(), transaction_id, check_number, text) for begun in hashes]
            return f"{check_number}-{text}" + "".join(macs)

        return make

    def read(self, nonce: str, transaction_id: str) -> int | None:
        """The check number; None for what was never given out for this transaction."""
        match = _NONCE.fullmatch(nonce)
        if match is None:
            return None
        number, text, mac = int(match[1]), match[2][:-_MAC_CHARACTERS], match[2][-_MAC_CHARACTERS:]
        hashes = [self._keyring.begin(key_id, _PURPOSE) for key_id in self._keyring.key_ids]
        valid = [_mac(begun, transaction_id, number, text) for begun in hashes]
        return number if not valid or any(compare_digest(mac, one) for one in valid) else None


def _mac(mac: "hashlib.blake2b", transaction_id: str, check_number: int, text: str) -> str:
    mac.update(f"{transaction_id}\0{check_number}\0{text}".encode())
    return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


_WORDS: Mapping[object, Resolution] = {word.name: word for word in Resolution}
_NUMBERS: Mapping[object, Resolution] = {int(word): word for word in Resolution}
_MEMBERS = frozenset({"transaction_id", "nonce", "resolution"})
_REMARKED = _MEMBERS | {"remark"}


class Check(NamedTuple):
    """One transaction's check, rendered once for all endpoints of a round. `trace`: that of its first message."""

    transaction_id: str
    number: int
    nonce: str
    text: str
    trace: Sequence[Header] = ()


class Subject(NamedTuple):
    """What a check asks about. `number`: one more than the transaction's answered checks. Messages as JSON."""

    transaction_id: str
    number: int
    born_ms: int
    idempotency_key: str | None
    messages: Sequence[JsonText]


class Answers(NamedTuple):
    """What an endpoint said. `is_well_formed` False: nothing in it counts; `strange`: entries that do not count.
    `remarks`: of those that have one."""

    resolutions: Mapping[str, Resolution]
    is_well_formed: bool = True
    strange: int = 0
    remarks: Mapping[str, str] = MappingProxyType({})


def make_check(transaction: Transaction, body: LoadedHalf, make_nonce: NonceMaker) -> Check:
    """The check that follows the transaction's last answered one."""
    half = body.half
    number = transaction.check_times + 1
    messages = [write_message(message) for message in body.messages]
    subject = Subject(transaction.transaction_id, number, half.born_ms, half.idempotency_key, messages)
    return render_check(subject, make_nonce)._replace(trace=find_trace(body.messages[0].headers))


def render_check(subject: Subject, make_nonce: NonceMaker) -> Check:
    """The check as it goes out, sent or fetched."""
    nonce = make_nonce(subject.transaction_id, subject.number)
    text = (
        f'{{"transaction_id":"{subject.transaction_id}","check_number":{subject.number},"nonce":"{nonce}",'
        f'"born_time":"{show_time(subject.born_ms)}","idempotency_key":{write_json(subject.idempotency_key)},'
        f'"messages":[{",".join(subject.messages)}]}}'
    )
    return Check(subject.transaction_id, subject.number, nonce, text)


def encode_call(group: str, checks: Sequence[Check], *, is_trial: bool = False) -> str:
    """The body of a call. `is_trial`: its answers count for nothing, so that the endpoint need keep none."""
    texts = ",".join([check.text for check in checks])
    trial = ',"trial":true' if is_trial else ""
    return f'{{"type":"transaction.check","producer_group":{write_json(group)},"checks":[{texts}]{trial}}}'


def encode_challenge(group: str, challenge: str) -> str:
    """The body of a call that asks nothing, but wants this text back."""
    return f'{{"type":"transaction.check","producer_group":{write_json(group)},"checks":[],"challenge":"{challenge}"}}'


def is_echo(body: bytes, challenge: str) -> bool:
    """Whether the answer to such a call is the right one. Never raises."""
    return _load(body) == {"resolutions": [], "challenge": challenge}


def decode_answers(body: bytes, asked: Mapping[str, str]) -> Answers:
    """The resolutions that count. `asked`: nonce by transaction id. Never raises.

    A transaction that is missing from the result was not answered: left out, named twice, with another
    nonce, an unknown word or further members.
    """
    document = _load(body)
    if not isinstance(document, dict) or document.keys() != {"resolutions"}:
        return Answers({}, is_well_formed=False)
    entries = document["resolutions"]
    if not isinstance(entries, list):
        return Answers({}, is_well_formed=False)
    return _read_entries(entries, asked)


def _load(body: bytes) -> object:
    """The document; None if there is none."""
    try:
        return json.loads(body.decode(), object_pairs_hook=unique_members, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None


def _read_entries(entries: Sequence[object], asked: Mapping[str, str]) -> Answers:
    found: dict[str, Resolution | None] = {}
    remarks: dict[str, str] = {}
    strange = 0
    for entry in entries:
        transaction_id = entry.get("transaction_id") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(transaction_id, str) or transaction_id not in asked:
            strange += 1
            continue
        resolution = _read_resolution(entry, asked[transaction_id])
        found[transaction_id] = None if transaction_id in found else resolution
        if remark := _read_remark(entry):
            remarks[transaction_id] = remark
    resolutions = {transaction_id: word for transaction_id, word in found.items() if word is not None}
    return Answers(resolutions, strange=strange + len(found) - len(resolutions), remarks=remarks)


def _read_resolution(entry: Mapping[str, object], nonce: str) -> Resolution | None:
    if (entry.keys() != _MEMBERS and entry.keys() != _REMARKED) or entry["nonce"] != nonce:
        return None
    word = entry["resolution"]
    if isinstance(word, str):
        return _WORDS.get(word)
    return _NUMBERS.get(word) if type(word) is int else None  # neither false nor 8.0


def _read_remark(entry: Mapping[str, object]) -> str | None:
    """What can be kept of it: no answer is lost for what is said beside it."""
    remark = entry.get("remark")
    if not isinstance(remark, str):
        return None
    kept = remark[:MAX_REMARK_CHARS]
    return kept if is_property_text(kept) else None


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
