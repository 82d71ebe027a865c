"""Checks and answers on the wire: `transaction.check` and what an endpoint says to it. Strict both ways."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from bridge.core.message import Message
from bridge.core.message_json import show_message, write_json
from bridge.core.record import Resolution
from bridge.core.transaction import Transaction
from bridge.settler.observer import Body
from checker.nonce import NonceMaker

_WORDS: Mapping[object, Resolution] = {word.name: word for word in Resolution}
_NUMBERS: Mapping[object, Resolution] = {int(word): word for word in Resolution}
_LAST_MS = 253_402_300_799_999  # the year 9999
_MEMBERS = frozenset({"transaction_id", "nonce", "resolution"})


class Check(NamedTuple):
    """One transaction's check, rendered once for all endpoints of a round."""

    transaction_id: str
    number: int
    nonce: str
    text: str


class Subject(NamedTuple):
    """What a check asks about. `number`: one more than the transaction's answered checks."""

    transaction_id: str
    number: int
    born_ms: int
    idempotency_key: str | None
    messages: Sequence[Message]


class Answers(NamedTuple):
    """What an endpoint said. `is_well_formed` False: nothing in it counts; `strange`: entries that do not count."""

    resolutions: Mapping[str, Resolution]
    is_well_formed: bool = True
    strange: int = 0


def make_check(transaction: Transaction, body: Body, make_nonce: NonceMaker) -> Check:
    """The check that follows the transaction's last answered one."""
    half = body.half
    number = transaction.check_times + 1
    subject = Subject(transaction.transaction_id, number, half.born_ms, half.idempotency_key, body.messages)
    return render_check(subject, make_nonce)


def render_check(subject: Subject, make_nonce: NonceMaker) -> Check:
    """The check as it goes out, sent or fetched."""
    nonce = make_nonce(subject.transaction_id, subject.number)
    text = write_json(
        {
            "transaction_id": subject.transaction_id,
            "check_number": subject.number,
            "nonce": nonce,
            "born_time": show_time(subject.born_ms),
            "idempotency_key": subject.idempotency_key,
            "messages": [show_message(message) for message in subject.messages],
        }
    )
    return Check(subject.transaction_id, subject.number, nonce, text)


def encode_call(group: str, checks: Sequence[Check]) -> str:
    """The body of a call."""
    texts = ",".join([check.text for check in checks])
    return f'{{"type":"transaction.check","producer_group":{write_json(group)},"checks":[{texts}]}}'


def decode_answers(body: bytes, asked: Mapping[str, str]) -> Answers:
    """The resolutions that count. `asked`: nonce by transaction id. Never raises.

    A transaction that is missing from the result was not answered: left out, named twice, with another
    nonce, an unknown word or further members.
    """
    try:
        document = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return Answers({}, is_well_formed=False)
    if not isinstance(document, dict) or document.keys() != {"resolutions"}:
        return Answers({}, is_well_formed=False)
    entries = document["resolutions"]
    if not isinstance(entries, list):
        return Answers({}, is_well_formed=False)
    return _read_entries(entries, asked)


def show_time(time_ms: int) -> str:
    """RFC 3339 with Z, millisecond precision."""
    seconds, millis = divmod(min(max(time_ms, 0), _LAST_MS), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def _read_entries(entries: Sequence[object], asked: Mapping[str, str]) -> Answers:
    found: dict[str, Resolution | None] = {}
    strange = 0
    for entry in entries:
        transaction_id = entry.get("transaction_id") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(transaction_id, str) or transaction_id not in asked:
            strange += 1
            continue
        resolution = _read_resolution(entry, asked[transaction_id])
        found[transaction_id] = None if transaction_id in found else resolution
    resolutions = {transaction_id: word for transaction_id, word in found.items() if word is not None}
    return Answers(resolutions, strange=strange + len(found) - len(resolutions))


def _read_resolution(entry: Mapping[str, object], nonce: str) -> Resolution | None:
    if entry.keys() != _MEMBERS or entry["nonce"] != nonce:
        return None
    word = entry["resolution"]
    if isinstance(word, str):
        return _WORDS.get(word)
    return _NUMBERS.get(word) if type(word) is int else None  # neither false nor 8.0


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("repeated name")
    return members


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is not JSON")
