"""In-memory services behind the HTTP interface: enough of their promises to test the interface alone."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import getrandbits
from typing import Any, cast

from msgspec import structs

from api.web.request import Services
from bridge.clock import SystemClock
from bridge.core.check_rules import GroupSettings
from bridge.core.explanation import Circumstances, Explanation, explain
from bridge.core.grants import EVERYTHING, Rights
from bridge.core.keyring import Keyring
from bridge.core.message import BY_KEY, Message, Receipt
from bridge.core.record import Act, Resolution
from bridge.core.transaction import (
    STATE_AFTER,
    MessageSummary,
    TimelineEvent,
    TransactionState,
    TransactionView,
    digest_bits,
    make_transaction_id,
)
from bridge.directory import Endpoint, GroupSwitch, ProducerGroup, PullCheck
from bridge.service.access import AccessConfig, AccessService
from bridge.service.admission import refuse_call
from bridge.service.claims import ClaimCall, ClaimedCheck
from bridge.service.contract import Accepted, EndCall, Limits, PrepareCall, Prepared, RefusalCode, Refused, Wait
from bridge.service.groups import EndpointRegistered, GroupSaved
from bridge.service.operate import Who
from bridge.service.reads import AuditList, BridgeStats, Lag, TransactionList
from bridge.service.redrive import RedriveAction, RedrivePreview, encode_filter, only_parked
from bridge.sql.access import ActEntry
from bridge.sql.engine import Database
from bridge.sql.groups import EndpointHealth, GroupHealth
from bridge.sql.redrive import JobState, RedriveJob
from bridge.sql.search import GroupStats, ProjectionStats, SearchFilter
from checker.call import Nonces
from checker.endpoint_trial import EndpointTrials
from tests.support.bad_requests import Facts
from tests.support.check_fakes import MemoryCaller

BORN_MS = 1_769_860_800_123


_LIMITS = Limits(max_messages=10_000)


@dataclass
class FakeTransactions:
    """Transactions in a dict. `refusal`: every call is answered with it; `broken`: every call raises it."""

    views: dict[str, TransactionView] = field(default_factory=dict)
    bodies: dict[str, Sequence[Message]] = field(default_factory=dict)
    prepared: list[PrepareCall] = field(default_factory=list)
    ended: list[EndCall] = field(default_factory=list)
    acts: list[tuple[str, object, Who]] = field(default_factory=list)
    refusal: Refused | None = None
    broken: Exception | None = None
    gate: asyncio.Event | None = None
    batches: list[int] = field(default_factory=list)
    first_tries_ms: list[int | None] = field(default_factory=list)
    rights_of_calls: list[Rights] = field(default_factory=list)

    def kafka_time_ms(self) -> int:
        """As if it stood still."""
        return BORN_MS

    async def prepare(
        self,
        calls: Sequence[PrepareCall],
        wait_ms: int = 10_000,
        first_try_ms: int | None = None,
        rights: Rights = EVERYTHING,
    ) -> list[Prepared | TransactionView | Refused]:
        """A repeat of a keyed call names the same transaction."""
        await self._enter()
        self.rights_of_calls.append(rights)
        self.first_tries_ms.append(first_try_ms)
        self.prepared += calls
        self.batches.append(len(calls))
        return [self.refusal or refuse_call(call, _LIMITS) or self._prepare(call) for call in calls]

    async def end(
        self, calls: Sequence[EndCall], wait: Wait = Wait.SETTLED, wait_ms: int = 10_000, rights: Rights = EVERYTHING
    ) -> list[TransactionView | Accepted | Refused]:
        """The first resolution wins."""
        await self._enter()
        self.rights_of_calls.append(rights)
        self.ended += calls
        return [self.refusal or self._end(call, wait) for call in calls]

    def begin_prepare(
        self,
        call: PrepareCall,
        wait_ms: int,
        answer: Callable[[Prepared | TransactionView | Refused], None],
        rights: Rights = EVERYTHING,
    ) -> bool:
        """Answered at once, if nothing is rare about it."""
        if call.idempotency_key is not None or self.broken or self.gate:
            return False
        self.batches.append(1)
        self.prepared.append(call)
        answer(self.refusal or refuse_call(call, _LIMITS) or self._prepare(call))
        return True

    def begin_end(
        self,
        call: EndCall,
        wait_ms: int,
        answer: Callable[[TransactionView | Refused], None],
        rights: Rights = EVERYTHING,
    ) -> bool:
        """Answered at once."""
        if self.broken or self.gate:
            return False
        self.ended.append(call)
        answer(self.refusal or self._end(call, Wait.SETTLED))
        return True

    async def get(self, transaction_id: str, rights: Rights = EVERYTHING) -> TransactionView | Refused:
        """What is stored."""
        await self._enter()
        return self.refusal or self.views.get(transaction_id) or _missing(transaction_id)

    async def explain(self, view: TransactionView) -> Explanation:
        """As if nothing but time had passed."""
        return explain(view, Circumstances(BORN_MS))

    async def get_bodies(self, view: TransactionView, who: Who) -> Sequence[Message] | Refused | None:
        """What was prepared."""
        return self.bodies.get(view.transaction_id)

    async def timeline(self, transaction_id: str, rights: Rights = EVERYTHING) -> list[TimelineEvent] | Refused:
        """Its birth, a round nobody answered, and where it was published."""
        view = await self.get(transaction_id)
        if isinstance(view, Refused):
            return view
        return [
            TimelineEvent(view.born_ms, "prepared", "producer", {"queue_offset": view.queue_offset}),
            TimelineEvent(
                view.born_ms + 6_000, "check_unanswered", "check", {"first_ms": BORN_MS, "failure": "refused"}
            ),
            TimelineEvent(view.born_ms + 9_000, "published", None, {"receipts": [["orders", 0, 7]]}),
        ]

    async def act(self, transaction_id: str, act: Act, who: Who, wait_ms: int = 10_000) -> TransactionView | Refused:
        """Only parked transactions can be resumed, only blocked ones abandoned."""
        view = await self.get(transaction_id)
        if isinstance(view, Refused):
            return view
        self.acts.append((transaction_id, act, who))
        if act is Act.RESUME and view.state is not TransactionState.PARKED:
            return Refused(RefusalCode.NOT_PARKED, "not parked", transaction_id=transaction_id, state=view.state)
        if act is Act.ABANDON:
            if not view.blocked:
                return Refused(RefusalCode.NOT_BLOCKED, "not blocked", transaction_id=transaction_id, state=view.state)
            view = self.views[transaction_id] = structs.replace(view, blocked=False, abandoned=True)
        return view

    async def force(
        self, transaction_id: str, resolution: Resolution, who: Who, wait_ms: int = 10_000
    ) -> TransactionView | Refused:
        """An end by an operator."""
        self.acts.append((transaction_id, resolution, who))
        answer = self._end(EndCall(transaction_id, resolution), Wait.SETTLED)
        assert not isinstance(answer, Accepted)
        return answer

    async def _enter(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.gate is not None:
            await self.gate.wait()

    def _prepare(self, call: PrepareCall) -> Prepared | TransactionView | Refused:
        key = call.idempotency_key or f"unkeyed {len(self.views)}"
        bits = digest_bits(call.group, key, call.is_published, call.ordering_key, call.messages)
        transaction_id = make_transaction_id(1, bits)
        known = self.views.get(transaction_id)
        if known is None:
            known = self._store(transaction_id, call)
        if known.state is not TransactionState.PREPARED:
            return known
        return Prepared(transaction_id, call.group, known.state, BORN_MS, BORN_MS + 6_000, 1, known.queue_offset)

    def _store(self, transaction_id: str, call: PrepareCall) -> TransactionView:
        summaries = [
            MessageSummary(m.topic, m.key, None if m.value is None else len(m.value), m.queue_id, m.timestamp_ms)
            for m in call.messages
        ]
        view = TransactionView(
            transaction_id,
            call.group,
            TransactionState.PREPARED,
            1,
            len(self.views),
            BORN_MS,
            BORN_MS,
            first_check_ms=BORN_MS + 6_000,
            next_due_ms=BORN_MS + 6_000,
            idempotency_key=call.idempotency_key,
            ordering_key=call.ordering_key,
            messages=summaries,
        )
        self.views[transaction_id] = view
        self.bodies[transaction_id] = call.messages
        if call.is_published:
            self._end(EndCall(transaction_id, Resolution.COMMIT), Wait.SETTLED)
        return self.views[transaction_id]

    def _end(self, call: EndCall, wait: Wait) -> TransactionView | Accepted | Refused:
        view = self.views.get(call.transaction_id)
        if view is None:
            return _missing(call.transaction_id)
        if call.group is not None and call.group != view.group:
            return Refused(RefusalCode.PRODUCER_GROUP_MISMATCH, "another group", transaction_id=call.transaction_id)
        if call.resolution is not Resolution.UNKNOWN:
            state = STATE_AFTER[call.resolution]
            if view.ended_ms is not None and view.state is not state:
                return Refused(
                    RefusalCode.ALREADY_RESOLVED, "resolved", transaction_id=call.transaction_id, state=view.state
                )
            if view.ended_ms is None:
                self.views[call.transaction_id] = view = _ended(view, state)
        return view if wait is Wait.SETTLED else Accepted(call.transaction_id, call.resolution)


def _ended(view: TransactionView, state: TransactionState) -> TransactionView:
    receipts = [
        Receipt(summary.topic, max(summary.queue_id, 0) if summary.queue_id != BY_KEY else 0, offset)
        for offset, summary in enumerate(view.messages)
    ]
    is_committed = state is TransactionState.COMMITTED
    return structs.replace(
        view,
        state=state,
        by="producer",
        ended_ms=BORN_MS + 50,
        receipts=receipts if is_committed else (),
        next_due_ms=None,
    )


def _missing(transaction_id: str) -> Refused:
    return Refused(RefusalCode.UNKNOWN_TRANSACTION, "no such transaction", transaction_id=transaction_id)


@dataclass
class FakeSearch:
    """Pages over the fake's transactions; a cursor is a place in the list."""

    transactions: FakeTransactions

    async def search(self, wanted: SearchFilter, limit: int, cursor: str | None = None) -> TransactionList | Refused:
        """States and groups are filtered."""
        matching = [
            view
            for view in self.transactions.views.values()
            if (not wanted.states or view.state in wanted.states) and wanted.group in {None, view.group}
        ]
        start = 0 if cursor is None else int(cursor)
        return TransactionList(
            matching[start : start + limit], str(start + limit) if len(matching) > start + limit else None
        )

    async def audit(self, limit: int, cursor: str | None = None) -> AuditList | Refused:
        """One entry for each act."""
        entries = [ActEntry(BORN_MS, who.actor, "act", target, who.reason) for target, _, who in self.transactions.acts]
        return AuditList(entries[:limit], None)

    async def stats(self, rights: Rights = EVERYTHING) -> BridgeStats | Refused:
        """One group with one pending transaction."""
        group = GroupStats(3, 1, 0, 1, 0, BORN_MS, ((1, 1), (None, 0)))
        return BridgeStats(ProjectionStats(group, {"orders": group}), Lag(250, 1_500), BORN_MS + 2_000)


@dataclass
class FakeParked:
    """Jobs in a dict; none ever ends by itself."""

    search: FakeSearch
    jobs: dict[str, RedriveJob] = field(default_factory=dict)

    async def list(self, wanted: SearchFilter, limit: int, cursor: str | None = None) -> TransactionList | Refused:
        """Parked ones."""
        return await self.search.search(only_parked(wanted), limit, cursor)

    async def preview(self, wanted: SearchFilter) -> RedrivePreview | Refused:
        """Counts them."""
        page = await self.list(wanted, 10)
        assert not isinstance(page, Refused)
        return RedrivePreview(len(page.transactions), False, page.transactions)

    async def redrive(
        self, wanted: SearchFilter, action: RedriveAction, rate_per_s: int, who: Who
    ) -> RedriveJob | Refused:
        """A running job."""
        name = f"job-{len(self.jobs)}"
        self.jobs[name] = job = RedriveJob(
            name, BORN_MS, BORN_MS, who.actor, who.reason, encode_filter(wanted), action.value, rate_per_s
        )
        return job

    async def get_job(self, job_id: str, rights: Rights = EVERYTHING) -> RedriveJob | Refused | None:
        """The job."""
        return self.jobs.get(job_id)

    async def list_jobs(self, limit: int, rights: Rights = EVERYTHING) -> Sequence[RedriveJob] | Refused:
        """All jobs."""
        return [*self.jobs.values()][:limit]

    async def stop(self, job_id: str, who: Who) -> RedriveJob | Refused | None:
        """The stopped job."""
        job = self.jobs.get(job_id)
        if job is not None:
            self.jobs[job_id] = job = replace(job, state=JobState.STOPPED)
        return job


@dataclass
class FakeGroups:
    """Groups in a dict; `forbidden` is the one URL that may not be called, `busy` the one group in use."""

    groups: dict[str, ProducerGroup] = field(default_factory=dict)
    forbidden: str = "http://10.0.0.1/"
    busy: str = "busy"
    deleted_by: list[Who] = field(default_factory=list)

    async def put(self, name: str, settings: GroupSettings, urls: Sequence[str], who: Who) -> GroupSaved | Refused:
        """A secret on creation."""
        if self.forbidden in urls:
            place = f"/endpoints/{list(urls).index(self.forbidden)}/url"
            return Refused(RefusalCode.CALLBACK_URL_FORBIDDEN, "not allowed", errors=((place, "not allowed"),))
        is_created = name not in self.groups
        group = ProducerGroup(name, settings, [Endpoint(url) for url in urls], created_ms=BORN_MS)
        self.groups[name] = group
        return GroupSaved(group, is_created, "whsec_first" if is_created else None)

    async def find(self, name: str, rights: Rights) -> ProducerGroup | Refused:
        """As it was put."""
        return self.groups.get(name) or Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")

    async def get(self, name: str, rights: Rights = EVERYTHING) -> GroupHealth | Refused:
        """Its endpoints with a failure each, and a round without any."""
        group = self.groups.get(name)
        if group is None:
            return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")
        unasked = EndpointHealth(Endpoint(""), unanswered=2, last_unanswered_ms=BORN_MS)
        healths = [EndpointHealth(endpoint, 1, BORN_MS, 12, 3, BORN_MS, "timeout") for endpoint in group.endpoints]
        return GroupHealth(group, [unasked, *healths], GroupStats(1, oldest_pending_ms=BORN_MS))

    async def list(self, limit: int, after: str = "", rights: Rights = EVERYTHING) -> Sequence[GroupHealth] | Refused:
        """By name."""
        found = [await self.get(name) for name in sorted(self.groups) if name > after]
        return [health for health in found[:limit] if isinstance(health, GroupHealth)]

    async def delete(self, name: str, who: Who, wait_ms: int = 2_000) -> Refused | None:
        """Not the busy one."""
        if name == self.busy:
            return Refused(RefusalCode.PRODUCER_GROUP_IN_USE, "in use")
        if self.groups.pop(name, None) is None:
            return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")
        self.deleted_by.append(who)
        return None

    async def switch(self, name: str, what: GroupSwitch, who: Who, *, is_paused: bool) -> ProducerGroup | Refused:
        """In its settings."""
        group = self.groups.get(name)
        if group is None:
            return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")
        if what is GroupSwitch.CHECKS:
            settings = replace(group.settings, pauses_checks=is_paused)
        else:
            settings = replace(group.settings, accepts_prepares=not is_paused)
        self.groups[name] = replace(group, settings=settings)
        return self.groups[name]

    async def switch_prepares(self, who: Who, *, is_paused: bool) -> Refused | None:
        """Done."""
        return None

    async def rotate_secret(self, name: str, who: Who) -> str | Refused:
        """Another one."""
        if name not in self.groups:
            return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")
        return "whsec_second"

    async def register_endpoint(self, name: str, url: str, lease_ms: int, who: Who) -> EndpointRegistered | Refused:
        """For as long as it is wanted, unless a put named it."""
        group = self.groups.get(name)
        if group is None:
            return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")
        if url == self.forbidden:
            return Refused(RefusalCode.CALLBACK_URL_FORBIDDEN, "not allowed", errors=(("/url", "not allowed"),))
        if Endpoint(url) in group.endpoints:
            return EndpointRegistered(url, None)
        leased = Endpoint(url, is_leased=True, lease_until_ms=BORN_MS + lease_ms)
        others = [endpoint for endpoint in group.endpoints if endpoint.url != url]
        self.groups[name] = replace(group, endpoints=[*others, leased])
        return EndpointRegistered(url, leased.lease_until_ms)

    async def remove_endpoint(self, name: str, url: str, who: Who) -> bool | Refused:
        """If it is leased."""
        group = self.groups.get(name)
        if group is None:
            return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, "no such group")
        left = [endpoint for endpoint in group.endpoints if endpoint.url != url or not endpoint.is_leased]
        self.groups[name] = replace(group, endpoints=left)
        return len(left) < len(group.endpoints)


@dataclass
class FakeClaims:
    """Gives every PREPARED transaction of a group, once; `waits`: until nobody wants it any more."""

    transactions: FakeTransactions
    calls: list[ClaimCall] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)
    waits: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def claim(self, call: ClaimCall) -> Sequence[ClaimedCheck] | Refused:
        """The next check of each."""
        self.calls.append(call)
        self.came.set()
        while self.waits:
            await asyncio.sleep(0.005)
            if not call.is_wanted():
                self.given_up.set()
                return []
        if call.group != "orders":
            return Refused(RefusalCode.NOT_PULL_MODE, "not in pull mode")
        views = [view for view in self.transactions.views.values() if view.state is TransactionState.PREPARED]
        found = [view for view in views if view.transaction_id not in self.claimed][: call.limit]
        self.claimed |= {view.transaction_id for view in found}
        bodies = self.transactions.bodies
        return [
            ClaimedCheck(
                view,
                view.check_times + 1,
                bodies[view.transaction_id],
                PullCheck(view.transaction_id, view.group, view.check_times + 1, 0),
            )
            for view in found
        ]


def make_services(transactions: FakeTransactions, **others: Any) -> Services:
    """Services over one fake."""
    search = FakeSearch(transactions)
    nonces = Nonces(Keyring(), lambda: f"{getrandbits(128):039}")  # without keys: the form alone counts
    trials = EndpointTrials(MemoryCaller(SystemClock()))
    faces = {"claims": FakeClaims(transactions), "nonces": nonces, "trials": trials, **others}
    access = AccessService(cast("Database", None), SystemClock(), AccessConfig())  # everybody is let in unseen
    parked, groups = FakeParked(search), FakeGroups()
    return Services(access, transactions, search, parked, groups, now_ms=lambda: BORN_MS + 2_000, **faces)


async def make_facts(transactions: FakeTransactions) -> Facts:
    """A prepared and a committed transaction."""
    calls = [PrepareCall("orders", [Message("orders.created", b"42")]) for _ in range(2)]
    prepared, committed = [answer for answer in await transactions.prepare(calls) if isinstance(answer, Prepared)]
    await transactions.end([EndCall(committed.transaction_id, Resolution.COMMIT)])
    return Facts("orders.created", "orders", prepared.transaction_id, committed.transaction_id)
