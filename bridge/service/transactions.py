"""Transactions, as every face of the bridge sees them: prepare, end, look up, act. Stateless."""

from functools import partial

from bridge.clock import Clock
from bridge.core.errors import StoreError
from bridge.core.explanation import Circumstances, Explanation, explain
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.core.message import Message
from bridge.core.transaction import TimelineEvent, TransactionState, TransactionView, can_exist, queue_of
from bridge.service.contract import Refused, refuse_missing, refuse_unavailable, refuse_view
from bridge.service.end import Ender
from bridge.service.operate import Operators, Who
from bridge.service.prepare import Preparer
from bridge.service.reads import BodyReader, CurrentReads, refuse_read
from bridge.sql.transactions import read_surroundings, read_timeline


class TransactionService:
    """Every call handles a list; a single one is a list of one. No call waits longer than its `wait_ms`.

    `rights`: what the caller may do. A transaction that he may not even read does not exist for him.
    A call that is cancelled leaves no waiter behind, and each of its records whole or not written.
    """

    def __init__(
        self,
        preparer: Preparer,
        ender: Ender,
        operators: Operators,
        reads: CurrentReads,
        bodies: BodyReader,
        clock: Clock,
    ) -> None:
        self._reads = reads
        self._bodies = bodies
        self._clock = clock
        self._kafka_time = preparer.kafka_time
        self._directory = preparer.admission.directory
        self._operators = operators
        self.prepare, self.begin_prepare = preparer.prepare, preparer.begin
        self.end, self.begin_end = ender.end, ender.begin
        self.act, self.force = operators.act, operators.force
        # what a caller may count on from for `first_try_ms`; 0 as long as it is not known
        self.kafka_time_ms = preparer.kafka_time.now_ms

    async def get(self, transaction_id: str, rights: Rights = EVERYTHING) -> TransactionView | Refused:
        """The transaction as of now: sees every write acknowledged before the call."""
        if not can_exist(transaction_id, self._reads.queues):
            return refuse_missing(transaction_id)
        view = await self._reads.find_one(transaction_id, self._reads.deadline())
        return view if isinstance(view, Refused) else refuse_view(rights, Verb.READ, view) or view

    async def explain(self, view: TransactionView) -> Explanation | Refused:
        """Why a transaction that was just read is as it is, and what comes next."""
        now_ms = self._kafka_time.now_ms() or self._clock.now_ms()
        read = await self._reads.read_beyond({}, partial(read_surroundings, view=view), self._reads.deadline())
        if read.value is None:
            return refuse_read(read.currency, view.transaction_id)
        unanswered, halt, remark = read.value
        settings = self._directory.settings_of(view.group)
        around = Circumstances(now_ms, settings, unanswered, halt, self._bodies.is_lost(view))
        return explain(view, around)._replace(remark=remark)

    async def timeline(self, transaction_id: str, rights: Rights = EVERYTHING) -> list[TimelineEvent] | Refused:
        """What happened to the transaction, oldest first; as current as `get`."""
        if not rights.may_everywhere(Verb.READ):
            view = await self.get(transaction_id, rights)
            if isinstance(view, Refused):
                return view
        if not can_exist(transaction_id, self._reads.queues):
            return refuse_missing(transaction_id)
        queues, deadline = [queue_of(transaction_id)], self._reads.deadline()
        read = await self._reads.read(queues, partial(read_timeline, transaction_id=transaction_id), deadline)
        if read.value is None:
            return refuse_read(read.currency, transaction_id)
        return read.value or await self._reads.refuse_missing(transaction_id)

    async def get_bodies(self, view: TransactionView, who: Who) -> list[Message] | Refused | None:
        """The prepared messages, from the journal, else from the parked topic; None if no log has them any more.
        What rules mask is for administrators of the group.

        Parked ones, which others have to decide about, are for administrators, and the look at them is audited.
        """
        if view.state is TransactionState.PARKED:
            refused = await self._operators.audit_reading(view, who)
            if refused is not None:
                return refused
        try:
            return await self._bodies.show(view, who.rights)
        except StoreError:
            return refuse_unavailable("the journal cannot be read now", view.transaction_id)
