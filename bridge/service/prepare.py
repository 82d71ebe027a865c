"""Prepare: half messages into the journal, repeats recognised (design sections 4 and 5)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bridge.clock import KafkaTime
from bridge.core.check_rules import GroupSettings, first_wait_ms
from bridge.core.grants import EVERYTHING, Rights
from bridge.core.message import Message, MessageQueue
from bridge.core.properties import count_record_bytes
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source, is_too_late, is_void
from bridge.core.record_codec import encode_end, encode_half, encode_plain_half
from bridge.core.topics import choose_half_queue, choose_placing_key, hash_effective_key, hash_ordering_key
from bridge.core.transaction import IdRun, TransactionState, TransactionView, digest_bits, make_transaction_id
from bridge.directory import DEFAULT_SETTINGS
from bridge.fault_points import FaultPoint, reach
from bridge.service.admission import STEP_COST, Admission, GroupKey, KeyClaim, Keyed, Known, Repeats, find_cost
from bridge.service.contract import (
    FINAL,
    Outcome,
    PrepareCall,
    Prepared,
    RefusalCode,
    Refused,
    refuse_given_up,
    refuse_unheard,
    refuse_unknown,
)
from bridge.service.journal import LATE, Deadline, Give, Journal, LoneCall, refuse_put
from bridge.service.reads import refuse_read
from bridge.service.replies import OpFollower, ReceivedReply, ReplyBatch
from bridge.store.message_store import PutResult, PutStatus
from bridge.turns import Pace

PrepareAnswer = Prepared | TransactionView | Refused

_TRIES = 2  # of a keyed half message that was void: the first may only have fetched the time
_RANDOM_BITS = 74
_VOID = "the journal took too long twice; repeat the call"
_REUSED = Refused(RefusalCode.IDEMPOTENCY_KEY_REUSED, "the key was used with other content")
_NO_MESSAGE = Message("")  # stands for several
_NO_SETTINGS = (None, None, None, None, None)
_PUT_OK, _PREPARED = PutStatus.PUT_OK, TransactionState.PREPARED  # Python finds the members of an enum only slowly


_Stored = tuple[str, str, int, int | None, int]  # id, group, time of birth, immunity time in the record, queue


class _Seen(NamedTuple):
    """Kafka's time as this process knows it, and the monotonic clock, both before the look-up."""

    kafka_ms: int
    at_ms: int


class _Draft(Struct, gc=False):
    """A call on its way. `is_asked_only`: it is known and not ended or blocked, so only its state is asked for.

    `is_claimed`: its idempotency key has been taken for it. `is_first`: nobody has sent it before (decision 0017).
    `is_undated`: it is stored, but since when is not known, so it may be void.
    """

    index: int
    call: PrepareCall
    half: HalfMessage
    queue_id: int
    is_waiting: bool
    place: int = -1
    is_asked_only: bool = False
    is_claimed: bool = False
    is_first: bool = False
    is_undated: bool = False


class Preparer:
    """Prepares lists of calls: one put, one future."""

    def __init__(
        self,
        admission: Admission,
        journal: Journal,
        follower: OpFollower,
        repeats: Repeats,
        kafka_time: KafkaTime,
        random_bits: Callable[[int], int],
    ) -> None:
        self.admission = admission
        self.journal = journal
        self.follower = follower
        self.repeats = repeats
        self.kafka_time = kafka_time
        self._random_bits = random_bits
        self._times_of = admission.directory.times_of
        # if a settler may still know another one, then the record says what the answer says
        self._find_timeout_s = admission.directory.find_timeout_s
        self._ids = IdRun(0, 0)
        self._queues = [MessageQueue(journal.topics.half, n) for n in range(journal.topics.queues)]

    async def prepare(
        self,
        calls: Sequence[PrepareCall],
        wait_ms: int = 10_000,
        first_try_ms: int | None = None,
        rights: Rights = EVERYTHING,
        new_group: GroupSettings = DEFAULT_SETTINGS,
    ) -> list[PrepareAnswer]:
        """Prepared once the half message is stored; the view of what has ended, or was published at once.

        `first_try_ms`: no later than Kafka's time when the idempotency keys were first sent anywhere, by this very
        call; then nothing is looked up (decision 0017). `new_group`: settings of a group that nobody has made.
        """
        if not calls:
            return []
        deadline = Deadline.after(self.kafka_time.clock, wait_ms)
        first_try_ms = self._check_first_try(first_try_ms)
        refused: list[PrepareAnswer | None] = [*await self.admission.refuse(calls, rights, deadline, new_group)]
        if first_try_ms is None and any(refused):
            await self._answer_repeats(calls, refused, rights, deadline)
        born_ms = self.kafka_time.clock.now_ms()
        first = self._take_ids(born_ms, len(calls))
        timeouts = {group: self._find_timeout_s(group) for group in {call.group for call in calls}}
        if not any(refused):
            plain = await self._prepare_plain(calls, (self._ids, first), born_ms, timeouts, deadline)
            if plain is not None:
                return plain
        batch = _Batch(self, refused, deadline)
        seen_ms = 0 if first_try_ms is None else min(self.kafka_time.now_ms(), first_try_ms)
        drafts: list[_Draft] = []
        pace = Pace(STEP_COST)
        for index, call in enumerate(calls):
            if batch.answers[index] is None:
                if pace.spend(find_cost(call)):
                    await self.admission.turns.take()
                drafts.append(self._draft(index, call, (born_ms, seen_ms), first + index, timeouts[call.group]))
        if first_try_ms is not None:
            batch.claim_first_tries(drafts)
        await batch.run(drafts, _TRIES)
        batch.give_back_keys(drafts)
        return [answer for answer in batch.answers if answer is not None]

    async def _answer_repeats(
        self, calls: Sequence[PrepareCall], refused: list[PrepareAnswer | None], rights: Rights, deadline: Deadline
    ) -> None:
        """What speaks against new calls says nothing of what is there: a repeat of that is answered as ever (A)."""
        asked, pace = dict[int, str](), Pace(STEP_COST)
        for index, call in enumerate(calls):
            if call.idempotency_key is not None and self.admission.is_refused_as_new(call, rights, refused[index]):
                if pace.spend(find_cost(call)):
                    await self.admission.turns.take()
                asked[index] = make_transaction_id(*self._place_keyed(call, call.idempotency_key))
        if not asked:
            return
        read = await self.repeats.find(set(asked.values()), deadline)
        for index, transaction_id in asked.items():
            if read.value is None:
                refused[index] = refuse_read(read.currency)
            elif (view := read.value.get(transaction_id)) is not None:
                refused[index] = self.tell_known(view, calls[index].immunity_s)

    def _place_keyed(self, call: PrepareCall, key: str) -> tuple[int, int]:
        """The queue and the bits that its id is made of."""
        bits = digest_bits(call.group, key, call.is_published, call.ordering_key, call.messages)
        return self._choose_queue(call, bits), bits

    def _check_first_try(self, first_try_ms: int | None) -> int | None:
        """None for one whose record would be void, or could not be told from one that is: such as one with a time
        far ahead, which was told before a broker's clock was set back."""
        time, now_ms = self.kafka_time, self.kafka_time.now_ms()
        if first_try_ms is None or time.is_doubted or not now_ms:
            return None
        return None if is_too_late(first_try_ms, now_ms) or is_too_late(now_ms, first_try_ms) else first_try_ms

    async def _prepare_plain(
        self,
        calls: Sequence[PrepareCall],
        numbers: tuple[IdRun, int],
        born_ms: int,
        timeouts: Mapping[str, int | None],
        deadline: Deadline,
    ) -> list[PrepareAnswer] | None:
        """What most calls are: no look-up, no waiter; as a `_Batch` does it. None if one of them needs more."""
        stored, messages = list[_Stored](), list[Message]()
        pace, (ids, bits) = Pace(STEP_COST), numbers
        for call in calls:
            if not _is_plain(call):
                return None
            if pace.spend(find_cost(call)):
                await self.admission.turns.take()
            half, told = self._make_plain(call, ids, bits, born_ms, timeouts[call.group])
            messages.append(half)
            stored.append(told)
            bits += 1
        results = await self.append(messages, deadline)
        waits = {about: self.find_first_wait_ms(*about) for about in {(told[1], told[3]) for told in stored}}
        return [self.tell(told, put, waits[told[1], told[3]]) for told, put in zip(stored, results, strict=True)]

    def begin(
        self, call: PrepareCall, wait_ms: int, answer: Callable[[PrepareAnswer], None], rights: Rights = EVERYTHING
    ) -> bool:
        """The answer to a call of which nothing is rare is given when its record is stored, without a task.

        False: something is, and nothing has happened.
        """
        if not (_is_plain(call) and self.admission.is_admitted(call, rights)):
            return False
        born_ms = self.kafka_time.clock.now_ms()
        first = self._take_ids(born_ms, 1)
        half, stored = self._make_plain(call, self._ids, first, born_ms, self._find_timeout_s(call.group))
        alone = _LonePrepare(self, stored, answer)
        self.journal.patience.add(alone, wait_ms)
        self._put([half], alone.land)
        return True

    def _take_ids(self, born_ms: int, count: int) -> int:
        """The first of so many numbers of `_ids`."""
        first = self._ids.take(born_ms, count)
        if first is None:
            self._ids = IdRun(born_ms, self._random_bits(_RANDOM_BITS))
            first = self._ids.take(born_ms, count) or 0
        return first

    def _make_plain(
        self, call: PrepareCall, ids: IdRun, bits: int, born_ms: int, timeout_s: int | None
    ) -> tuple[Message, _Stored]:
        (only,), group, immunity_s = call.messages, call.group, call.immunity_s
        queue_id = self._choose_queue(call, bits)
        transaction_id, queue = ids.make_id(queue_id, bits), self._queues[queue_id]
        settings = timeout_s, call.ordering_key, immunity_s, call.max_checks, call.max_lifetime_s
        if settings == _NO_SETTINGS:  # then the record has no more to say than the messages
            ordering_hash = hash_effective_key(group, only.topic, None, only.key)
            half = encode_plain_half(transaction_id, group, born_ms, only, ordering_hash, queue)
        else:
            made = _make_half(call, transaction_id, born_ms, 0, timeout_s)
            half, immunity_s = encode_half(made, call.messages, *queue), made.immunity_s
        return half, (transaction_id, group, born_ms, immunity_s, queue_id)

    async def append(self, messages: Sequence[Message], deadline: Deadline) -> list[PutResult]:
        """Puts half messages."""
        return await deadline.given(partial(self._put, messages), [LATE] * len(messages))

    def _put(self, messages: Sequence[Message], give: Give) -> None:
        def land(results: list[PutResult]) -> None:
            reach(FaultPoint.PREPARE_ACKED)
            give(results)

        reach(FaultPoint.PREPARE_UNSENT)
        self.journal.put(messages, land)

    def tell(self, stored: "_Stored", put: PutResult, first_wait_ms: int | None = None) -> PrepareAnswer:
        """The answer to what was put. `first_wait_ms`: as `find_first_wait_ms` has it."""
        if (refused := refuse_put(put, stored[0])) is not None:
            return refused
        transaction_id, group, born_ms, immunity_s, queue_id = stored
        wait_ms = self.find_first_wait_ms(group, immunity_s) if first_wait_ms is None else first_wait_ms
        first_ms = (put.stored_ms if put.stored_ms > 0 else born_ms) + wait_ms
        return Prepared(transaction_id, group, _PREPARED, born_ms, first_ms, queue_id, put.queue_offset)

    def tell_known(self, view: TransactionView, immunity_s: int | None) -> PrepareAnswer:
        """201 only for PREPARED: the local transaction must not run for anything else."""
        if view.state is not _PREPARED or view.is_unproven:
            return refuse_given_up(view) if view.is_unproven else view
        # what the settler has chosen counts: a repeat may ask for another immunity time
        first_ms = view.first_check_ms or view.next_due_ms or 0
        if view.check_times and view.first_check_ms is None:
            first_ms = view.appended_ms + self.find_first_wait_ms(view.group, immunity_s)
        at_ms, place = view.appended_ms, (view.queue_id, view.queue_offset)
        return Prepared(view.transaction_id, view.group, view.state, at_ms, first_ms, *place)

    def find_first_wait_ms(self, group: str, immunity_s: int | None) -> int:
        """How long after its append a transaction is asked about at the earliest."""
        return first_wait_ms(immunity_s, self._times_of(group))

    def _draft(self, index: int, call: PrepareCall, times: tuple[int, int], bits: int, timeout_s: int | None) -> _Draft:
        key = call.idempotency_key
        queue_id, bits = self._place_keyed(call, key) if key is not None else (self._choose_queue(call, bits), bits)
        half = _make_half(call, make_transaction_id(queue_id, bits), *times, timeout_s)
        return _Draft(index, call, half, queue_id, key is not None or call.is_published)

    def _choose_queue(self, call: PrepareCall, bits: int) -> int:
        if len(self._queues) == 1:
            return 0
        placing_key = choose_placing_key(call.ordering_key, call.messages[0].key, bits.to_bytes(16))
        return choose_half_queue(hash_ordering_key(placing_key), len(self._queues))


class _Batch:
    """One list of calls until every one has its answer."""

    def __init__(self, preparer: Preparer, answers: list[PrepareAnswer | None], deadline: Deadline) -> None:
        self._preparer = preparer
        self._deadline = deadline
        self.answers = answers

    def claim_first_tries(self, drafts: Sequence[_Draft]) -> None:
        """What nobody has sent before need not be looked up, and is new: its append answers it."""
        for draft in drafts:
            if draft.call.idempotency_key is not None:
                draft.is_first = True
                draft.is_waiting = draft.call.is_published
                self.answers[draft.index] = self._claim(draft, (draft.half.group, draft.call.idempotency_key))

    async def run(self, drafts: Sequence[_Draft], tries: int) -> None:
        """Looks up, appends, waits; once more from the start for what was void."""
        time = self._preparer.kafka_time
        seen = _Seen(time.now_ms(), time.clock.monotonic_ms())
        keyed = [draft for draft in drafts if draft.call.idempotency_key is not None and not draft.is_first]
        if keyed:
            await self._drop_repeats(keyed, seen)
            reach(FaultPoint.PREPARE_LOOKED_UP)
        waiting, wait = self._open(drafts)
        try:
            for place, draft in enumerate(waiting):
                draft.place = place
            void = await self._append(drafts, wait, seen)
            if void and tries > 1:
                await self.run(void, tries - 1)
            for draft in void:
                self._judge_void(draft)
            await wait.until(self._deadline)
        finally:
            wait.close()
        if waiting:
            reach(FaultPoint.PREPARE_HEARD)
        for place, draft in enumerate(waiting):
            if self.answers[draft.index] is None:
                self.answers[draft.index] = self._answer(draft, wait.heard[place])

    def _judge_void(self, draft: _Draft) -> None:
        """What its second try was not applied for says nothing of a first one that may count."""
        answer, transaction_id = self.answers[draft.index], draft.half.transaction_id
        if answer is None:
            refused = Refused(RefusalCode.UNAVAILABLE, _VOID, Outcome.UNKNOWN, transaction_id, retry_after_s=1)
            self.answers[draft.index] = refused
        elif draft.is_undated and _is_not_applied(answer):
            self.answers[draft.index] = refuse_unknown(transaction_id)

    def give_back_keys(self, drafts: Sequence[_Draft]) -> None:
        """A key whose transaction is certainly not stored may name another one, whatever the refusal was."""
        for draft in drafts:
            answer, key = self.answers[draft.index], draft.call.idempotency_key
            if draft.is_claimed and key is not None and _is_not_applied(answer):
                self._preparer.repeats.keys.forget((draft.half.group, key))

    async def _drop_repeats(self, keyed: Sequence[_Draft], seen: _Seen) -> None:
        """Answers those whose transaction has ended, or whose key names another one."""
        asked = [Keyed(d.half.transaction_id, d.queue_id, (d.half.group, d.call.idempotency_key or "")) for d in keyed]
        known = await self._preparer.repeats.look_up(asked, seen.at_ms, self._deadline)
        for draft, wanted in zip(keyed, asked, strict=True):
            self.answers[draft.index] = self._answer_known(draft, wanted, known)

    def _answer_known(self, draft: _Draft, wanted: Keyed, known: Known) -> PrepareAnswer | None:
        if not known.is_current:
            return refuse_read(known.currency)
        view = known.by_id.get(wanted.transaction_id)
        if view is not None and view.state in FINAL and not view.blocked:
            return view  # nothing about it changes any more, so a projection that lags says the same
        if view is not None and view.is_unproven:
            return refuse_given_up(view)
        draft.is_asked_only = view is not None
        if view is not None:
            return None
        return _REUSED if wanted.key in known.by_key else self._claim(draft, wanted.key)

    def _claim(self, draft: _Draft, key: GroupKey) -> Refused | None:
        claim = self._preparer.repeats.keys.claim(key, draft.half.transaction_id)
        if claim is KeyClaim.TAKEN:
            return _REUSED
        draft.is_claimed = draft.is_claimed or claim is KeyClaim.MADE
        return None

    def _open(self, drafts: Sequence[_Draft]) -> tuple[list[_Draft], ReplyBatch]:
        """The calls that wait for an answer, refused if it could not arrive, and their waiters."""
        waiting = [d for d in drafts if d.is_waiting and self.answers[d.index] is None]
        wait = self._preparer.follower.open([draft.half.transaction_id for draft in waiting])
        if wait is not None:
            return waiting, wait
        for draft in waiting:
            self.answers[draft.index] = refuse_unheard()
        return self._open(())

    async def _append(self, drafts: Sequence[_Draft], wait: ReplyBatch, seen: _Seen) -> list[_Draft]:
        """Appends what has no answer yet; gives back what turned out to be void."""
        sent: list[_Draft] = []
        messages: list[Message] = []
        pace = Pace(STEP_COST)
        for draft in drafts:
            if pace.spend(find_cost(draft.call)):
                await self._preparer.admission.turns.take()
            if self.answers[draft.index] is None and (message := self._encode(draft, wait, seen)) is not None:
                sent.append(draft)
                messages.append(message)
        void: list[_Draft] = []
        results = await self._preparer.append(messages, self._deadline)
        for draft, result in zip(sent, results, strict=True):
            if result.status is not _PUT_OK:
                self._note_failure(draft, result, wait)
            elif not draft.is_asked_only and _is_doubtful(draft, result):
                draft.is_undated = result.stored_ms <= 0
                draft.is_first, draft.is_waiting = False, True
                void.append(draft)
                self._let_go(draft, wait)
            elif not draft.is_waiting:
                half = draft.half
                stored = half.transaction_id, half.group, half.born_ms, half.immunity_s, draft.queue_id
                self.answers[draft.index] = self._preparer.tell(stored, result)
        return void

    def _encode(self, draft: _Draft, wait: ReplyBatch, seen: _Seen) -> Message | None:
        topic, half = self._preparer.journal.topics.half, draft.half
        request = wait.requests[draft.place] if draft.place >= 0 else None
        if draft.is_asked_only:
            ask = EndRecord(half.transaction_id, Resolution.UNKNOWN, Source.PRODUCER, half.born_ms, half.group, request)
            return encode_end(ask, topic, draft.queue_id)
        if request is not None:
            half = draft.half = replace(
                half, request=request, seen_ms=half.seen_ms if draft.is_first else seen.kafka_ms
            )
        message = encode_half(half, draft.call.messages, topic, draft.queue_id)
        if half.message_count > 1 and count_record_bytes(message) > self._preparer.admission.limits.max_record_bytes:
            detail = "the transaction is larger than the journal takes"
            self.answers[draft.index] = Refused(RefusalCode.MESSAGE_TOO_LARGE, detail)
            self._let_go(draft, wait)
            return None
        return message

    def _note_failure(self, draft: _Draft, result: PutResult, wait: ReplyBatch) -> None:
        """A refusal is the answer; records that may be written can still be answered by the settlers."""
        if result.status is PutStatus.OUTCOME_UNKNOWN and draft.is_waiting:
            return
        self.answers[draft.index] = refuse_put(result, draft.half.transaction_id)
        if result.status is PutStatus.REFUSED:
            self._let_go(draft, wait)

    def _let_go(self, draft: _Draft, wait: ReplyBatch) -> None:
        if draft.place >= 0:
            wait.drop(draft.place)

    def _answer(self, draft: _Draft, heard: ReceivedReply | None) -> PrepareAnswer:
        if heard is None or heard.view is None:
            return refuse_unknown(draft.half.transaction_id)
        return self._preparer.tell_known(heard.view, draft.half.immunity_s)


class _LonePrepare(LoneCall[PrepareAnswer]):
    __slots__ = ("_preparer", "_stored")

    def __init__(self, preparer: Preparer, stored: _Stored, answer: Callable[[PrepareAnswer], None]) -> None:
        super().__init__(answer)
        self._preparer = preparer
        self._stored = stored

    def land(self, results: Sequence[PutResult]) -> None:
        self.give(self._preparer.tell(self._stored, results[0]))

    def give_up(self) -> None:
        self.give(refuse_unknown(self._stored[0]))


def _is_plain(call: PrepareCall) -> bool:
    """Whether an append is all that the call needs, and waits for."""
    return call.idempotency_key is None and not call.is_published and len(call.messages) == 1


def _make_half(
    call: PrepareCall, transaction_id: str, born_ms: int, seen_ms: int, timeout_s: int | None
) -> HalfMessage:
    first = call.messages[0]
    only = first if len(call.messages) == 1 else _NO_MESSAGE
    return HalfMessage(
        transaction_id,
        call.group,
        len(call.messages),
        born_ms,
        only.topic,
        only.queue_id,
        only.timestamp_ms,
        call.ordering_key,
        call.immunity_s if timeout_s is None else max(call.immunity_s or 0, timeout_s),
        call.max_checks,
        call.max_lifetime_s,
        call.idempotency_key,
        seen_ms,
        None,
        call.is_published,
        hash_effective_key(call.group, first.topic, call.ordering_key, first.key),
    )


def _is_doubtful(draft: _Draft, result: PutResult) -> bool:
    """Whether what was appended does not count, or nobody waits for the answer and its time is not known."""
    return is_void(draft.half, result.stored_ms) or (draft.is_first and result.stored_ms <= 0)


def _is_not_applied(answer: PrepareAnswer | None) -> bool:
    return isinstance(answer, Refused) and answer.outcome is Outcome.NOT_APPLIED
