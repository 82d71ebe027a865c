"""Which connections speak for a producer group, and the checks of each group, sent to one of them."""

import asyncio
import hmac
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from api.remoting.frame import ONE_WAY, HeaderType, RemotingCommand, encode_frame
from api.remoting.message import (
    BROKER,
    GROUP,
    MAX_PROPERTY_CHARS,
    TRANSACTIONAL,
    UNIQUE_KEY,
    CheckedMessage,
    RequestCode,
    encode_checked,
    make_message_id,
)
from bridge.clock import Clock
from bridge.core.check_rules import CheckMode
from bridge.core.properties import is_property_text
from bridge.service.access import ANYBODY, Caller, SigningSecrets
from bridge.service.claims import ClaimCall, ClaimedCheck, ClaimService
from bridge.service.contract import Refused
from bridge.sql.directory import SqlDirectory
from checker.call import NonceMaker, Nonces

# --- who makes a request: RocketMQ's ACL, with keys and grants of the bridge ---
# AccessKey is the id of an API key, SecretKey the secret beside it. A signature is over the values of all other fields,
# in the order of their names, and the body.

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


# --- which connections speak for a producer group, and its checks ---

_LOG = structlog.get_logger()
_MOST_CLAIMED = 100
_MOST_GROUPS = 10_000  # of all connections; clients may invent names
_WAIT_MS = 20_000
_PAUSE_MS = 2_000  # after a claim that was refused
_LEAST_LEASE_MS = 10_000
_TRANSACTION_ID = "__transactionId__"  # where the Go client looks for it first


class Member(Protocol):
    """A live connection."""

    header_type: HeaderType

    @property
    def is_ready(self) -> bool:
        """Whether it reads what it is sent."""
        ...

    def send(self, frame: bytes) -> None:
        """Writes a frame."""
        ...


def reply(member: Member, request: RemotingCommand, answer: bytes) -> None:
    """Nothing is said of what is one-way: a client would find no request of its own that it answers."""
    if not request.is_one_way:
        member.send(answer)


@dataclass(slots=True)
class CheckTotals:
    """What became of checks. `homeless`: given back, as no connection was there."""

    sent: int = 0
    homeless: int = 0


class ConnectedGroups:
    """All that the door remembers between two requests: group -> connections. A group with one has a claim loop."""

    def __init__(
        self, claims: ClaimService, directory: SqlDirectory, nonces: Callable[[], Nonces], clock: Clock, place: str
    ) -> None:
        self._claims = claims
        self._directory = directory
        self._nonces = nonces
        self._clock = clock
        self._place = place
        self._members: dict[str, dict[Member, None]] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}
        self._opaque = 0
        self._is_closed = False
        self.totals = CheckTotals()

    @property
    def names(self) -> Sequence[str]:
        """Groups with a connection."""
        return list(self._members)

    def join(self, group: str, member: Member) -> bool:
        """The connection speaks for the group. Said again, nothing changes. False: too many groups are spoken for, and
        nobody has made this one."""
        is_full = group not in self._members and len(self._members) >= _MOST_GROUPS
        if is_full and self._directory.get(group) is None:
            return False
        members = self._members.setdefault(group, {})
        members.setdefault(member)
        if group not in self._loops and not self._is_closed:
            self._loops[group] = asyncio.ensure_future(self._claim_forever(group))
        return True

    def leave(self, member: Member, groups: Iterable[str]) -> None:
        """The connection does not any more; a group without one is not asked."""
        for group in groups:
            members = self._members.get(group, {})
            members.pop(member, None)
            if not members:
                self._members.pop(group, None)

    async def close(self) -> None:
        """Claims nothing more."""
        self._is_closed = True
        loops = list(self._loops.values())
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)

    async def _claim_forever(self, group: str) -> None:
        """As long as the group has a connection."""
        while group in self._members:
            try:
                is_good = await self.run_once(group)
            except Exception:  # noqa: BLE001 - a loop that lives as long as the group has connections
                _LOG.exception("remoting_checks_not_claimed", group=group)
                is_good = False
            if not is_good:
                await self._clock.sleep_ms(_PAUSE_MS)
        self._refused.pop(group, None)
        del self._loops[group]  # in the turn that found nobody: a connection that comes in the next one begins another

    async def run_once(self, group: str) -> bool:
        """Claims what is due, and sends it; False if it was refused."""
        known = self._directory.get(group)
        if known is None or known.settings.calls.mode is not CheckMode.PULL:  # a claim would look into SQL each time
            return self._note_refused(group, f"{group} is no producer group whose checks are fetched")
        lease_ms = max(_LEAST_LEASE_MS, known.settings.times.interval_ms)
        claimed = await self._claims.claim(
            ClaimCall(
                group, _MOST_CLAIMED, _WAIT_MS, lease_ms, lambda: bool(self._members.get(group)), is_counted=False
            )
        )
        if isinstance(claimed, Refused):
            return self._note_refused(group, claimed.detail)
        self._refused.pop(group, None)
        make_nonce, homeless = self._nonces().begin(), list[ClaimedCheck]()
        for check in claimed:
            if (member := self._choose(group)) is None:
                homeless.append(check)
            else:
                self._opaque = (self._opaque + 1) & 0x7FFFFFFF
                member.send(self._write(check, make_nonce, member.header_type))
        self.totals.sent += len(claimed) - len(homeless)
        self.totals.homeless += len(homeless)
        if homeless:
            await self._claims.give_back(homeless)
        return not homeless

    def _note_refused(self, group: str, reason: str) -> bool:
        """Told once: it is asked again soon."""
        if self._refused.get(group) != reason:
            self._refused[group] = reason
            _LOG.warning("remoting_checks_not_claimed", group=group, reason=reason)
        return False

    def _choose(self, group: str) -> Member | None:
        """In turns; one that does not read is passed over."""
        members = self._members.get(group, {})
        for member in list(members):
            del members[member]
            members[member] = None
            if member.is_ready:
                return member
        return None

    def _write(self, check: ClaimedCheck, make_nonce: NonceMaker, header_type: HeaderType) -> bytes:
        view, message = check.view, check.messages[0]
        told_id = f"{view.transaction_id}.{make_nonce(view.transaction_id, check.number)}"
        key = view.idempotency_key or view.transaction_id
        properties = {
            GROUP: view.group,
            UNIQUE_KEY: key,
            TRANSACTIONAL: "true",
            _TRANSACTION_ID: told_id,
            "TRANSACTION_CHECK_TIMES": str(check.number),
            "REAL_TOPIC": message.topic,
        }
        left = MAX_PROPERTY_CHARS - sum(len(name) + len(text) + 2 for name, text in properties.items())
        for name, raw in message.headers:
            text = (raw or b"").decode("utf-8", "replace")
            size = len(name.encode()) + len(text.encode()) + 2
            if name not in properties and size <= left and is_property_text(name) and is_property_text(text):
                properties[name] = text
                left -= size
        body = encode_checked(
            CheckedMessage(message.topic, message.value or b"", properties, view.born_ms, view.queue_offset)
        )
        offset = str(view.queue_offset)
        fields = {
            "topic": message.topic,
            "tranStateTableOffset": offset,
            "commitLogOffset": offset,
            "msgId": key,
            "transactionId": told_id,
            "offsetMsgId": make_message_id(self._place, view.queue_offset),
            "bname": BROKER,
        }
        code = RequestCode.CHECK_TRANSACTION_STATE
        return encode_frame(RemotingCommand(code, self._opaque, ONE_WAY, 0, None, fields, body, header_type))
