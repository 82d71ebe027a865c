"""The audit beside the acts: heads of its chain in a topic of their own, its verdict, and its acts told as events."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import structlog

from bridge.clock import Clock
from bridge.core.audit_chain import (
    SHOWN,
    AuditHead,
    AuditLink,
    AuditRow,
    ChainFinding,
    ChainJudge,
    ToldHead,
    decode_head,
    encode_head,
)
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.keyring import Keyring
from bridge.core.message import JsonText, Message, MessageQueue, write_json
from bridge.core.topics import InternalTopics
from bridge.sql.access import (
    ActEntry,
    adopt_entries,
    decode_members,
    find_unlinked,
    read_last_link,
    read_links,
    read_macs,
    record_act,
)
from bridge.sql.engine import Database
from bridge.sql.events import CLOUD_EVENTS_JSON, Happening, make_cloud_event, name_source, read_acts, write_marks
from bridge.store.message_store import MessageStore, PutStatus

_LOG = structlog.get_logger()
HEAD_INTERVAL_MS = 10_000
LATE_MS = 60_000
_RESCAN_MS = 3_600_000
_PORTION = 1_000
_MARGIN_IDS = 1_000  # ids below the newest that another SQL transaction may still be about to commit
_NEVER_MS = 1 << 62
_MARK = "audit-topic"  # the number of the last link that was told
_TELL_INTERVAL_MS = 2_000


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """`entries` have links, of which `proven` lie below a head; `adopted`: of those that were written without a link.

    `unlinked`: entries that have none yet. `accepted`: how often an operator has said that the chain goes on although
    it was not the one that Kafka had a head of; heads before that do not count. `foreign`: records of the topic that
    are not this bridge's, passed over.
    """

    entries: int
    proven: int
    adopted: int
    unlinked: int
    heads: int
    accepted: int
    foreign: int
    flaws: int
    findings: list[ChainFinding]

    @property
    def unproven(self) -> int:
        """How many links are newer than the newest head that they agree with, or lie behind a flaw."""
        return self.entries - min(self.entries, self.proven)


class HeadTopic:
    """The topic of the heads, read on from where the last look ended."""

    def __init__(self, store: MessageStore, topics: InternalTopics, keyring: Keyring) -> None:
        self.queue = MessageQueue(topics.audit, 0)
        self.foreign = self.removed = 0
        self._store = store
        self._keyring = keyring
        self._next = 0
        self._accepted = set[AuditHead]()

    async def read(self) -> AsyncIterator[ToldHead]:
        """Heads that nobody has read here yet. Raises StoreError.

        What an operator has accepted once, nobody accepts by writing the record again: with that, heads that came in
        between would count no more.
        """
        offsets = await self._store.get_offsets(self.queue)
        self.removed = offsets.minimum
        if self._next > offsets.maximum:
            self._accepted.clear()
        self._next = offsets.minimum if self._next > offsets.maximum else max(self._next, offsets.minimum)
        while self._next < offsets.maximum:
            found = await self._store.get(self.queue, self._next, _PORTION)
            for message in found.messages:
                told = decode_head(self._keyring, message.value)
                if told is None or (told.accepts and told.head in self._accepted):
                    self.foreign += 1
                    _LOG.warning("audit_head_not_ours", offset=message.queue_offset)
                    continue
                if told.accepts:
                    self._accepted.add(told.head)
                yield told
            if found.next_begin_offset <= self._next:
                return
            self._next = found.next_begin_offset

    async def append(self, head: AuditHead, now_ms: int, owner: str, *, accepts: bool = False) -> str:
        """Why it may not be there; nothing if it is."""
        value = encode_head(self._keyring, ToldHead(head, accepts), now_ms, owner)
        put = await self._store.put(self.queue, Message(self.queue.topic, None, value, (), 0))
        return "" if put.status is PutStatus.PUT_OK else put.detail or put.status.value


async def verify_audit(
    database: Database, topic: HeadTopic, keyring: Keyring, outside_until_ms: int | None = None
) -> AuditVerdict:
    """Every link, every entry, every head. Raises StoreError and SqlUnavailable.

    Heads are read first: links that are written meanwhile are unproven, never missing.
    """
    told, accepted = set[AuditHead](), 0
    async for head, accepts in topic.read():
        if accepts:
            told, accepted = set(), accepted + 1
        told.add(head)
    heads = sorted(told)
    judge = ChainJudge(keyring, outside_until_ms)
    while portion := await database.read(partial(read_links, after=judge.last.number, limit=_PORTION)):
        for link, row in portion:
            judge.look(link, row)
    macs = await database.read(partial(read_macs, numbers=[head.number for head in heads]))
    judge.compare([(head, macs.get(head.number)) for head in heads])
    if topic.removed and not accepted:  # heads before such a word count no more
        judge.miss_heads(topic.removed)
    unlinked = end_id = 0
    while True:
        count, reached_id, last_id = await database.read(partial(find_unlinked, after_id=end_id))
        unlinked, end_id = unlinked + count, reached_id
        if end_id >= last_id:
            break
    return AuditVerdict(
        judge.entries, judge.proven, judge.adopted, unlinked, len(heads), accepted, topic.foreign, judge.flaws,
        judge.findings[:SHOWN],
    )  # fmt: skip


async def accept_chain(database: Database, topic: HeadTopic, entry: ActEntry) -> str:
    """Lets the chain go on as it is, after SQL was restored to an earlier time; why that may not hold, or nothing.

    That is audited, and told by every later look. Raises StoreError and SqlUnavailable.
    """
    await database.run(lambda conn: record_act(conn, entry))
    last = await database.read(read_last_link)
    assert last is not None
    return await topic.append(AuditHead(last.number, last.mac), entry.at_ms, entry.actor, accepts=True)


class AuditHeads:
    """Appends heads, a few seconds after the acts, whichever api process comes first; equal ones do no harm.

    It gives links to entries that were written without one, and never appends a head to a chain that does not go on
    from the last head: what is wrong stays visible. `fault`: why no head is appended; "" while all is well.
    """

    def __init__(
        self, database: Database, topic: HeadTopic, keyring: Keyring, clock: Clock, owner: str
    ) -> None:  # fmt: skip
        self._database = database
        self._topic = topic
        self._keyring = keyring
        self._clock = clock
        self._owner = owner
        self._newest = AuditHead(0, "")
        self._looked_id = 0
        self._rescan_ms = 0
        self._done_ms = clock.monotonic_ms()
        self.is_broken = False
        self.unproven = 0
        self._reason = "not looked at yet"

    @property
    def fault(self) -> str:
        """What an operator must know."""
        if self.is_broken:
            return self._reason
        age_ms = self._clock.monotonic_ms() - self._done_ms
        return f"no head of the audit was appended for {age_ms // 1000} s: {self._reason}" if age_ms > LATE_MS else ""

    async def run_once(self) -> bool:
        """Whether there is more to do at once. Raises StoreError and SqlUnavailable."""
        is_behind = await self._adopt()
        last = await self._database.read(read_last_link)
        if last is not None and (last.number, last.mac) == self._newest:
            self._note_done(0)
            return is_behind
        async for head, accepts in self._topic.read():
            self._newest = head if accepts else max(self._newest, head)
        if last is not None:
            is_behind |= await self._extend(last.number)
        elif self._newest.number:
            self._break(f"the audit has no links, and Kafka a head of {self._newest.number}")
        else:
            self._note_done(0)
        return is_behind

    async def _adopt(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._rescan_ms:
            self._looked_id, self._rescan_ms = 0, now_ms + _RESCAN_MS
        count, end_id, last_id = await self._database.read(partial(find_unlinked, after_id=self._looked_id))
        if count:
            adopt = partial(adopt_entries, after_id=self._looked_id, now_ms=self._clock.now_ms())
            _LOG.warning("audit_entries_adopted", count=await self._database.run(adopt))
            return True
        self._looked_id = end_id if end_id < last_id else max(self._looked_id, last_id - _MARGIN_IDS)
        return end_id < last_id

    async def _extend(self, last_number: int) -> bool:
        """A head of what goes on from the newest one."""
        newest = self._newest
        known = await self._database.read(partial(read_macs, numbers=[newest.number]))
        if newest.number and known.get(newest.number) != newest.link:
            self._break(f"link {newest.number} is not the one that Kafka has a head of")
            return False
        judge = ChainJudge(self._keyring, _NEVER_MS, newest)
        for link, row in await self._database.read(partial(read_links, after=newest.number, limit=_PORTION)):
            judge.look(link, row)
        if judge.findings:
            self._break(judge.findings[0].detail)
            return False
        if judge.last != newest and (reason := await self._topic.append(judge.last, self._clock.now_ms(), self._owner)):
            self.unproven, self._reason = last_number - newest.number, reason
            return False
        self._newest = judge.last
        self._note_done(max(0, last_number - judge.last.number))
        return self.unproven > 0

    def _note_done(self, unproven: int) -> None:
        self.is_broken, self._reason, self.unproven = False, "", unproven
        self._done_ms = self._clock.monotonic_ms()

    def _break(self, reason: str) -> None:
        if not self.is_broken:
            _LOG.error("audit_chain_broken", reason=reason)
        self.is_broken = True
        self._reason = f"{reason}; `outbox-bridge audit verify` tells what is wrong"

    async def run_forever(self) -> None:
        """Until cancelled."""
        while True:
            is_behind = False
            try:
                is_behind = await self.run_once()
            except (StoreError, SqlUnavailable) as error:
                self._reason = str(error)
                _LOG.warning("audit_head_not_appended", reason=self._reason)
            await self._clock.sleep_ms(0 if is_behind else HEAD_INTERVAL_MS)


class AuditTopic:
    """Tells a topic of every act, in its first partition and in the order of the chain: a CloudEvent each, at least
    once, with the id that it always has.

    One process does, under a lease. `fault`: why it does not go on; "" while it does. Source: CloudEvents 1.0.2, Kafka
    protocol binding, structured content mode.
    """

    def __init__(self, topic: str, half_topic: str, database: Database, store: MessageStore, clock: Clock) -> None:
        self.topic = topic
        self.fault = ""
        self._half_topic = half_topic
        self._database = database
        self._store = store
        self._clock = clock

    async def work(self) -> None:
        """Looks and tells until cancelled; whoever has the lease by then knows how it goes on."""
        try:
            while True:
                told = 0
                try:
                    told = await self.run_once()
                except (StoreError, SqlUnavailable) as error:
                    self._note(str(error))
                await self._clock.sleep_ms(0 if told == _PORTION else _TELL_INTERVAL_MS)
        finally:
            self.fault = ""

    async def run_once(self) -> int:
        """How many links it has left behind. Raises StoreError and SqlUnavailable."""
        look = partial(read_acts, mark=_MARK, topic=self._half_topic, limit=_PORTION)
        after, links, identity = await self._database.read(look)
        source = name_source(identity.cluster_id if identity else "", self._half_topic)
        reached, fault = after, ""
        for link, row in links:  # without a row: what was taken out of the audit is not told
            if row is not None and (fault := await self._tell(self._make_message(source, link, row))):
                break
            reached = link.number
        if reached > after:
            await self._database.run(partial(write_marks, marks={_MARK: str(reached)}))
        self._note(fault)
        return 0 if fault else len(links)

    async def _tell(self, message: Message) -> str:
        """Why it may not be there. Each waits for the one before: of many at once, those behind one that is refused
        would be there before it, and again with each try."""
        put = await self._store.put(MessageQueue(self.topic, 0), message)
        return "" if put.status is PutStatus.PUT_OK else put.detail or put.status.value

    def _make_message(self, source: str, link: AuditLink, row: AuditRow) -> Message:
        data = {
            "number": link.number,
            "actor": row.actor,
            "action": row.what,
            "target": row.target,
            "reason": row.reason,
            "before": _show(row.before),
            "after": _show(row.after),
        }
        # not by its number alone: behind a restored backup the same numbers are other acts
        told = make_cloud_event(source, Happening(f"audit.{row.what}", link.mac, row.target, row.at_ms, data))
        headers = [("content-type", CLOUD_EVENTS_JSON.encode())]
        return Message(self.topic, row.target.encode(), told.text.encode(), headers, 0)

    def _note(self, fault: str) -> None:
        if fault and fault != self.fault:
            _LOG.warning("audit_not_told", topic=self.topic, reason=fault)
        self.fault = fault


def _show(members: str | None) -> object:
    """As readers of the audit are shown it; the text where the bridge cannot have written it: others may, in SQL."""
    try:
        return JsonText(write_json(decode_members(members)))
    except (ValueError, TypeError, RecursionError):
        return members
