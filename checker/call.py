"""Checks and answers on the wire, strict both ways; the port for calling an endpoint; bounds of the checker."""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hmac import compare_digest
from types import MappingProxyType
from typing import NamedTuple, Protocol

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from bridge.core.errors import ConfigError
from bridge.core.keyring import Keyring
from bridge.core.measures import ByName, Durations
from bridge.core.message import Header, JsonText, refuse_constant, unique_members, write_json, write_message
from bridge.core.properties import is_property_text
from bridge.core.record import MAX_REMARK_CHARS, Resolution
from bridge.core.transaction import Transaction, find_trace, show_time
from bridge.store.message_store import LoadedHalf

# --- bounds of the checker as a whole, and what it counts ---


@dataclass(frozen=True, slots=True)
class CheckerConfig:
    """Limits over all producer groups."""

    total_calls: int = 64  # at once, over all groups
    max_attempts: int = 10  # endpoints tried in one round
    max_call_bytes: int = 1024 * 1024  # body of one call; a larger transaction goes alone
    large_calls: int = 2  # with such a transaction, at once, over all groups
    answer_bytes: int = 64 * 1024
    answer_bytes_per_check: int = 200
    report_wait_ms: int = 30_000  # an answer the settler says nothing about is asked for again after this
    append_retry_ms: int = 5_000  # an answer that could not be appended, or bodies that could not be read
    max_lag_ms: int = 15_000  # a queue read less far than this asks nobody
    tick_ms: int = 250
    close_wait_ms: int = 6_000
    max_objects: int = 4_096  # of a queue: more that wait for their first check are packed

    def __post_init__(self) -> None:
        if self.total_calls < 4:
            raise ConfigError("total_calls below 4 leaves no quarter for groups that do not answer")
        if self.large_calls < 2:
            raise ConfigError("large_calls below 2 leaves none for groups that answer")
        if min(self.max_attempts, self.max_call_bytes, self.answer_bytes, self.tick_ms) < 1:
            raise ConfigError("the checker's limits must be positive")

    def max_answer_bytes(self, checks: int) -> int:
        """What an answer to so many checks may weigh."""
        return self.answer_bytes + self.answer_bytes_per_check * checks


@dataclass(slots=True)
class GroupCheckCounts:
    """The same of one producer group; `calls`: how long calls to its endpoints took."""

    answered: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    calls: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class CheckCounts:
    """Counters since the process began, per transaction unless said otherwise.

    `answered` by resolution word, `unanswered` by failure word; `lateness`: from when a transaction was due to when
    it was asked about; `strange` entries of answers did not count.
    """

    calls: int = 0
    asked: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    parked: int = 0
    strange: int = 0
    lateness: Durations = field(default_factory=Durations)
    groups: ByName[GroupCheckCounts] = field(default_factory=lambda: ByName(GroupCheckCounts))
    groups_without_endpoint: set[str] = field(default_factory=set)
    errors: int = 0  # bugs survived, rounds that could not be recorded

    def count_answer(self, group: str, word: str) -> None:
        """One transaction was answered about."""
        self.answered[word] += 1
        self.groups.of(group).answered[word] += 1

    def count_silence(self, group: str, word: str) -> None:
        """One transaction was asked about in vain."""
        self.unanswered[word] += 1
        self.groups.of(group).unanswered[word] += 1


# --- checks and answers on the wire: `transaction.check`, its nonce, its signature. Strict both ways ---

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
    """What a check asks about. `number`: one more than the transaction's answered checks. Messages as JSON.

    `born_ms`: when the half message was stored, by Kafka's clock. Endpoints compare it with their database's: by an api
    process's own clock a committed local transaction could seem older than the question.
    """

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
    subject = Subject(transaction.transaction_id, number, transaction.appended_ms, half.idempotency_key, messages)
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


def _load(body: bytes) -> object:
    """The document; None if there is none."""
    try:
        return json.loads(body.decode(), object_pairs_hook=unique_members, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None


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


# --- port for calling an endpoint, and an adapter whose endpoints are functions, on any clock ---


class Failure(StrEnum):
    """Why there is no answer; bounded words for metrics and timelines."""

    NO_ENDPOINT = "no-endpoint"
    NOT_CLAIMED = "not-claimed"  # nobody of a group that fetches its checks came
    NOT_ANSWERED = "not-answered"  # it was fetched, and nothing was said
    NO_SECRET = "no-secret"  # noqa: S105 - a word; calls never go out unsigned
    NO_BODY = "no-body"  # no log has the messages any more
    FORBIDDEN = "forbidden"  # the URL, or what its name resolves to
    DNS = "dns"
    REFUSED = "refused"  # no connection
    NO_SOCKET = "no-socket"  # of ours: no file descriptor, port or memory is left for one
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    MALFORMED = "malformed"  # not HTTP, or headers above the limits
    TOO_LARGE = "too-large"
    COMPRESSED = "compressed"
    REDIRECT = "redirect"
    RATE_LIMITED = "rate-limited"
    GONE = "gone"
    STATUS = "status"  # any other status but 200
    BAD_ANSWER = "bad-answer"
    LEFT_OUT = "left-out"  # an answer, but not about this transaction


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """One POST. `timeout_ms`: over the whole exchange, from resolving the name to the last byte. `owner`: whose
    endpoint it is, a producer group or a receiver; what he holds up is his own."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeout_ms: int
    max_answer_bytes: int
    owner: str = ""


FIRST_BYTES = 120  # of an answer that is none, where its status says that the call was not looked into:
TELLING_STATUSES = frozenset({401, 403, 404, 405})  # others may quote messages


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """A whole reply within the limits, or why there is none. `endpoint`: the URL without its query.

    `body`: with one of TELLING_STATUSES its first bytes, for people.
    """

    endpoint: str
    latency_ms: int
    status: int = 0
    body: bytes = b""
    retry_after: str | None = None
    failure: Failure | None = None


class CheckCaller(Protocol):
    """Calls endpoints."""

    async def call(self, call: EndpointCall) -> EndpointReply:
        """One exchange within its limits. Never raises for what an endpoint does; never follows redirects."""
        ...

    async def close(self) -> None:
        """Cuts what is open."""
        ...


class LateCaller:
    """CheckCaller that is opened with its first call: most processes make none of those that it is for."""

    def __init__(self, open_caller: Callable[[], CheckCaller]) -> None:
        self._open_caller = open_caller
        self._caller: CheckCaller | None = None

    async def call(self, call: EndpointCall) -> EndpointReply:
        """As the caller does that it opens."""
        if self._caller is None:
            self._caller = self._open_caller()
        return await self._caller.call(call)

    async def close(self) -> None:
        """Cuts what is open."""
        if self._caller is not None:
            await self._caller.close()


def show_first(body: bytes) -> str:
    """The first bytes of an answer as a line that terminals, pages and databases take."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in body.decode(errors="replace")).split())


def failure_of(status: int) -> Failure | None:
    """What a status other than 200 means; None for 200."""
    if status == 200:
        return None
    if 300 <= status < 400:
        return Failure.REDIRECT
    return {429: Failure.RATE_LIMITED, 410: Failure.GONE}.get(status, Failure.STATUS)
