"""Coordinators of the in-memory log: of transactions, and of consumer groups."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bridge.core.message import Message, MessageQueue
from bridge.store.memory.link import Agenda, Code, LogError, Waiters
from bridge.store.memory.log import MemoryLog
from bridge.store.memory.partition import Appended, Stamp
from bridge.store.message_store import Consumed, GroupChange

# --- transaction coordinator of the in-memory log: transactional ids, epochs, markers; the older protocol (TV1) ---
# An EndTxn names only producer id and epoch, and the epoch does not change between two Kafka transactions of one
# producer: so a late EndTxn ends whatever that producer has open by then (KAFKA-17754).

_MARKER_RETRY_MS = 100


class Phase(Enum):
    """Where a transactional id's Kafka transaction is. ENDING: decided, but markers are missing."""

    EMPTY = "EMPTY"
    ONGOING = "ONGOING"
    ENDING = "ENDING"
    ENDED = "ENDED"


@dataclass(slots=True)
class ProducerRegistration:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    epoch: int = 0
    phase: Phase = Phase.EMPTY
    is_commit: bool = False
    queues: dict[MessageQueue, None] = field(default_factory=dict)
    transactions: int = 0  # begun so far; separates a late time-out from a due one


class TransactionCoordinator:
    """Epochs of transactional ids, and the ends of their Kafka transactions."""

    def __init__(self, log: MemoryLog, marker_delay_ms: Callable[[str, MessageQueue], int]) -> None:
        self._log = log
        self._marker_delay_ms = marker_delay_ms
        self._by_id: dict[str, ProducerRegistration] = {}

    def describe(self, transactional_id: str) -> ProducerRegistration | None:
        """The id's state, for those who look on from outside."""
        return self._by_id.get(transactional_id)

    def init(self, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
        """A new epoch of the id: fences the old one and aborts what it has open.

        Raises LogError CONCURRENT_TRANSACTIONS while markers of the last Kafka transaction are missing.
        """
        known = self._by_id.get(transactional_id)
        if known is None:
            known = self._by_id[transactional_id] = ProducerRegistration(
                transactional_id, len(self._by_id) + 1, timeout_ms
            )
            return known.producer_id, known.epoch
        if known.phase is Phase.ONGOING:
            known.epoch += 1
            self._decide(known, is_commit=False)
        if known.phase is Phase.ENDING:
            raise LogError(Code.CONCURRENT_TRANSACTIONS)
        known.epoch += 1
        known.timeout_ms = timeout_ms
        known.phase = Phase.EMPTY
        return known.producer_id, known.epoch

    def add_queues(self, transactional_id: str, stamp: Stamp, queues: Sequence[MessageQueue]) -> None:
        """All queues, or none, belong to the Kafka transaction, which begins here. Raises LogError."""
        known = self._check(transactional_id, stamp)
        for queue in queues:
            self._log.find_writable(queue).check_leader()
        self._begin(known)
        known.queues.update(dict.fromkeys(queues))

    def append(
        self, transactional_id: str, stamp: Stamp, queue: MessageQueue, messages: Sequence[Message]
    ) -> list[Appended]:
        """Appends inside the open Kafka transaction; the queue must belong to it. Raises LogError."""
        known = self._check(transactional_id, stamp)
        partition = self._log.find_writable(queue)
        if known.phase is not Phase.ONGOING or queue not in known.queues:
            raise LogError(Code.INVALID_TXN_STATE)
        return partition.append(messages, stamp, self._log.agenda.now_ms())

    def end(self, transactional_id: str, stamp: Stamp, is_commit: bool) -> None:
        """Decides the producer's open Kafka transaction; the markers follow. The same end again is fine."""
        known = self._check(transactional_id, stamp)
        if known.phase is Phase.ONGOING:
            self._decide(known, is_commit)
        elif known.phase is Phase.EMPTY or known.is_commit is not is_commit:
            raise LogError(Code.INVALID_TXN_STATE)
        elif known.phase is Phase.ENDING:
            raise LogError(Code.CONCURRENT_TRANSACTIONS)

    def _check(self, transactional_id: str, stamp: Stamp) -> ProducerRegistration:
        known = self._by_id.get(transactional_id)
        if known is None or known.producer_id != stamp.producer_id:
            raise LogError(Code.INVALID_PRODUCER_ID_MAPPING)
        if known.epoch != stamp.epoch:
            raise LogError(Code.PRODUCER_FENCED)
        return known

    def _begin(self, known: ProducerRegistration) -> None:
        if known.phase is Phase.ENDING:
            raise LogError(Code.CONCURRENT_TRANSACTIONS)
        if known.phase is Phase.ONGOING:
            return
        known.phase = Phase.ONGOING
        known.transactions += 1
        number = known.transactions
        self._log.agenda.later(known.timeout_ms, lambda: self._time_out(known, number))

    def _time_out(self, known: ProducerRegistration, number: int) -> None:
        if known.phase is Phase.ONGOING and known.transactions == number:
            known.epoch += 1  # the producer that slept is fenced
            self._decide(known, is_commit=False)

    def _decide(self, known: ProducerRegistration, is_commit: bool) -> None:
        known.phase = Phase.ENDING
        known.is_commit = is_commit
        for queue in tuple(known.queues):
            delay_ms = self._marker_delay_ms(known.transactional_id, queue)
            if delay_ms > 0:
                self._later(known, queue, delay_ms)
            else:
                self._write_marker(known, queue)

    def _later(self, known: ProducerRegistration, queue: MessageQueue, delay_ms: int) -> None:
        self._log.agenda.later(delay_ms, lambda: self._write_marker(known, queue))

    def _write_marker(self, known: ProducerRegistration, queue: MessageQueue) -> None:
        """A queue without a leader holds the Kafka transaction until it has one; a deleted one does not."""
        try:
            now_ms = self._log.agenda.now_ms()
            self._log.find(queue).end(known.producer_id, known.epoch, known.is_commit, now_ms)
        except LogError as error:
            if error.code is Code.LEADER_NOT_AVAILABLE:
                self._later(known, queue, _MARKER_RETRY_MS)
                return
        del known.queues[queue]
        if not known.queues:
            known.phase = Phase.ENDED


# --- group coordinator of the in-memory log: members, generations, cooperative sharing of queues, consume offsets ---

NOTHING: frozenset[int] = frozenset()


@dataclass(slots=True)
class Membership:
    """One member, as the coordinator and the member itself know it (a frozen one knows old things)."""

    member_id: str
    client: str
    topic: str
    owned: set[int] = field(default_factory=set)
    revoking: set[int] = field(default_factory=set)
    is_frozen: bool = False
    is_expired: bool = False
    freezes: int = 0  # so far; separates a late expiry from a due one
    revocations: int = 0
    changes: deque[GroupChange] = field(default_factory=deque)
    waiters: Waiters = field(default_factory=Waiters)

    def tell(self, change: GroupChange) -> None:
        self.changes.append(change)
        self.waiters.wake()


@dataclass(slots=True)
class Group:
    """A consumer group: members in order of joining, owners of queues, offsets."""

    members: dict[str, Membership] = field(default_factory=dict)
    offsets: dict[MessageQueue, Consumed] = field(default_factory=dict)


_REBALANCE_TIMEOUT_MS = 60_000


class GroupCoordinator:
    """Shares the queues of a topic among members: those revoked must be released before others get them."""

    def __init__(self, log: MemoryLog, session_timeout_ms: int = 10_000) -> None:
        self._log = log
        self._agenda: Agenda = log.agenda
        self._session_timeout_ms = session_timeout_ms
        self._groups: dict[str, Group] = {}
        self._joined = 0

        log.on_change = self._follow_topic

    # members

    def join(self, group: str, topic: str, client: str) -> Membership:
        """A new member; the queues are shared anew. Raises LogError for an unknown topic."""
        self._log.find(MessageQueue(topic, 0))
        member = Membership(self._next_member_id(client), client, topic)
        self._enter(group, member)
        return member

    def leave(self, group: str, member: Membership) -> None:
        """The member's queues go to others at once."""
        if self._group(group).members.pop(member.member_id, None) is not None:
            member.owned.clear()
            member.revoking.clear()
            self._rebalance(group)

    def release(self, group: str, member: Membership, queue_ids: Collection[int]) -> None:
        """Revoked queues are let go; who waits for them gets them."""
        released = member.revoking.intersection(queue_ids)
        if released and not member.is_expired:
            member.revoking -= released
            member.owned -= released
            self._rebalance(group)

    def freeze(self, group: str, member: Membership) -> None:
        """The member's process stands still: no heartbeats, so its session runs out."""
        if member.is_frozen:
            return
        member.is_frozen = True
        member.freezes += 1
        number = member.freezes
        self._agenda.later(self._session_timeout_ms, lambda: self._expire(group, member, number))

    def thaw(self, group: str, member: Membership) -> None:
        """The process goes on. A member whose session has run out learns that its queues are lost, and joins anew."""
        member.is_frozen = False
        if not member.is_expired:
            self._rebalance(group)
            return
        lost = frozenset(member.owned)
        member.owned.clear()
        member.revoking.clear()
        member.changes.clear()
        member.is_expired = False
        member.member_id = self._next_member_id(member.client)
        if lost:
            member.tell(GroupChange(NOTHING, NOTHING, lost))
        self._enter(group, member)

    def _follow_topic(self, topic: str) -> None:
        """Members see that their topic has come, gone or grown."""
        for name, group in self._groups.items():
            if any(member.topic == topic for member in group.members.values()):
                self._rebalance(name)

    def _next_member_id(self, client: str) -> str:
        self._joined += 1
        return f"{client}-{self._joined}"

    def _enter(self, name: str, member: Membership) -> None:
        self._group(name).members[member.member_id] = member
        self._rebalance(name)

    def _expire(self, name: str, member: Membership, number: int) -> None:
        group = self._group(name)
        if member.is_frozen and member.freezes == number and group.members.pop(member.member_id, None) is not None:
            member.is_expired = True
            self._rebalance(name)

    def _rebalance(self, name: str) -> None:
        """Free queues are given out, queues too many are revoked.

        Members that stand still keep what they have until their session runs out.
        """
        group = self._group(name)
        for topic in dict.fromkeys(member.topic for member in group.members.values()):
            members = [m for m in group.members.values() if m.topic == topic]
            awake = [m for m in members if not m.is_frozen]
            self._share(name, topic, members, awake)

    def _share(self, name: str, topic: str, members: Sequence[Membership], awake: Sequence[Membership]) -> None:
        found = self._log.topics.get(topic)
        everything = range(len(found.partitions) if found else 0)
        quotas = make_quotas(len(everything), members)
        held = set().union(*(m.owned for m in members)) if members else set()
        free = deque(queue_id for queue_id in everything if queue_id not in held)
        for member in awake:
            room = quotas[member.member_id] - len(member.owned)
            gained = frozenset(free.popleft() for _ in range(min(room, len(free))))
            kept = len(member.owned) - len(member.revoking)
            surplus = max(0, kept - quotas[member.member_id])
            revoked = frozenset(sorted(member.owned - member.revoking)[len(member.owned - member.revoking) - surplus :])
            if gained or revoked:
                self._tell(name, member, gained, revoked)

    def _tell(self, name: str, member: Membership, gained: frozenset[int], revoked: frozenset[int]) -> None:
        member.owned |= gained
        member.revoking |= revoked
        member.tell(GroupChange(gained, revoked, NOTHING))
        if revoked:
            member.revocations += 1
            number = member.revocations
            self._agenda.later(_REBALANCE_TIMEOUT_MS, lambda: self._insist(name, member, number))

    def _insist(self, name: str, member: Membership, number: int) -> None:
        """A member that does not release in time is removed, and joins anew."""
        if not member.revoking or member.revocations != number or member.is_frozen or member.is_expired:
            return
        self._group(name).members.pop(member.member_id, None)
        member.is_expired = True
        self.thaw(name, member)

    # consume offsets

    @property
    def names(self) -> list[str]:
        """Groups that have members or offsets."""
        return sorted(name for name, group in self._groups.items() if group.members or group.offsets)

    def get_offset(self, group: str, queue: MessageQueue) -> Consumed:
        """-1 if the group has committed none."""
        return self._group(group).offsets.get(queue, Consumed(-1))

    def put_offset(self, group: str, queue: MessageQueue, offset: Consumed, client: str) -> None:
        """Commits plainly. Raises LogError for an unknown queue, or if the group's members are of others."""
        self._log.find(queue)
        known = self._group(group)
        if known.members and all(member.client != client for member in known.members.values()):
            raise LogError(Code.UNKNOWN_MEMBER_ID)
        known.offsets[queue] = offset

    def delete_offsets(self, group: str) -> None:
        """Forgets what the group has committed."""
        self._group(group).offsets.clear()

    def describe(self, group: str) -> Mapping[str, frozenset[int]]:
        """Which member holds which queues, by member id."""
        return {name: frozenset(member.owned) for name, member in self._group(group).members.items()}

    def _group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group())


def make_quotas(queues: int, members: Sequence[Membership]) -> dict[str, int]:
    """How many queues each member is to have: as even as can be, and who has more now keeps the odd one."""
    if not members:
        return {}
    least, odd = divmod(queues, len(members))
    by_size = sorted(members, key=lambda m: -(len(m.owned) - len(m.revoking)))
    return {m.member_id: least + (1 if place < odd else 0) for place, m in enumerate(by_size)}
