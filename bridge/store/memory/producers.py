"""Transaction coordinator of the in-memory log: transactional ids, epochs, markers; the older protocol (TV1).

An EndTxn names only producer id and epoch, and the epoch does not change between two Kafka transactions
of one producer: so a late EndTxn ends whatever that producer has open by then (KAFKA-17754).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bridge.core.message import Message, MessageQueue
from bridge.store.memory.link import Code, LogError
from bridge.store.memory.log import MemoryLog
from bridge.store.memory.partition import Appended, Stamp

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
