"""What every Kafka client needs: a thread that owns it, and what its errors mean to the ports."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException

from bridge.core.errors import BatchOutcomeUnknown, StoreError, StoreFenced, StoreTimeout, StoreUnavailable
from bridge.store.message_store import PutResult, PutStatus, Refusal

# --- what Kafka's and the client's errors mean to the ports: the one table, tested line by line ---

# Certainly not written. An error that is not listed may have been written, or may be still: a time-out, a broken
# connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND (which was appended), a purge of requests in flight, a fatal error.
REFUSALS: Mapping[int, Refusal] = {
    KafkaError.MSG_SIZE_TOO_LARGE: Refusal.MESSAGE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: Refusal.MESSAGE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: Refusal.MESSAGE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Refusal.NOT_AUTHORISED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Refusal.NOT_AUTHORISED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Refusal.NOT_AUTHORISED,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Refusal.UNKNOWN_TOPIC,
    KafkaError.TOPIC_EXCEPTION: Refusal.UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_TOPIC: Refusal.UNKNOWN_TOPIC,  # noqa: SLF001 - the client's public name for it
    KafkaError._UNKNOWN_PARTITION: Refusal.UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError.INVALID_TIMESTAMP: Refusal.INVALID_TIMESTAMP,
    KafkaError._QUEUE_FULL: Refusal.STORE_BUSY,  # noqa: SLF001
    KafkaError.NOT_ENOUGH_REPLICAS: Refusal.STORE_BUSY,
    KafkaError.INVALID_RECORD: Refusal.OTHER,
    KafkaError.INVALID_REQUIRED_ACKS: Refusal.OTHER,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: Refusal.OTHER,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: Refusal.OTHER,
    KafkaError.POLICY_VIOLATION: Refusal.OTHER,
}

# One message that is refused so takes all messages of its request with it, also those of other callers.
WHOLE_REQUEST_REFUSALS = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_TIMESTAMP,
     KafkaError.INVALID_RECORD}
)  # fmt: skip

# The last one says that Kafka has forgotten the transactional id, which was not used for too long (a week by default):
# it would let in whoever comes first, so whoever it says that to may have had a successor.
FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,  # noqa: SLF001
     KafkaError.INVALID_PRODUCER_ID_MAPPING}
)  # fmt: skip

# Nobody has answered.
SILENCE = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
     KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}  # noqa: SLF001
)  # fmt: skip
COORDINATOR_AWAY = frozenset(
    {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
)
# Nobody who could say it has answered yet: a retry helps.
TIMEOUTS = SILENCE | COORDINATOR_AWAY | frozenset(
    {KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION, KafkaError._WAIT_COORD,  # noqa: SLF001
     KafkaError._DESTROY_BROKER,  # noqa: SLF001 - the client has let this connection go for another one
     KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,  # noqa: SLF001
     KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE}
)  # fmt: skip

# Errors after which the client asks for an abort, or allows one, and nothing of the request was written.
ABORTABLE = frozenset(REFUSALS) | frozenset(
    {KafkaError.UNKNOWN_PRODUCER_ID, KafkaError.TRANSACTION_ABORTABLE, KafkaError.GROUP_AUTHORIZATION_FAILED,
     KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError.FENCED_INSTANCE_ID, KafkaError.STALE_MEMBER_EPOCH, KafkaError.OFFSET_METADATA_TOO_LARGE,
     KafkaError._INCONSISTENT, KafkaError._PURGE_QUEUE}  # noqa: SLF001
)  # fmt: skip

# Errors of a reader whose position, or queue, does not exist.
OUTSIDE_THE_LOG = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
     KafkaError.TOPIC_EXCEPTION, KafkaError.UNKNOWN_TOPIC_ID, KafkaError.INCONSISTENT_TOPIC_ID,
     KafkaError.TOPIC_AUTHORIZATION_FAILED}
)  # fmt: skip


# A fatal error is raised by whatever call serves the client's callbacks; if a callback runs after it in the same
# call, what comes out is a SystemError with the real one as its cause.
CLIENT_ERRORS = (KafkaException, SystemError)


def error_of(raised: BaseException) -> KafkaError:
    """The error inside an exception of the client."""
    seen: BaseException | None = raised
    while seen is not None:
        if isinstance(seen, KafkaException) and isinstance(seen.args[0], KafkaError):
            return seen.args[0]
        seen = seen.__cause__ or seen.__context__
    return KafkaError(KafkaError.UNKNOWN, str(raised))


def describe(error: KafkaError) -> str:
    """Name and text for logs and people."""
    return f"{error.name()}: {error.str()}"


def make_failed_put(error: KafkaError) -> PutResult:
    """What a put answers to a failed delivery report, or to a message the client did not take."""
    refusal = REFUSALS.get(error.code())
    status = PutStatus.OUTCOME_UNKNOWN if refusal is None else PutStatus.REFUSED
    return PutResult(status, refusal=refusal, detail=describe(error))


def make_store_error(error: KafkaError) -> StoreError:
    """What a read, or a plain commit of an offset, raises."""
    kind = StoreTimeout if error.code() in TIMEOUTS else StoreUnavailable
    return kind(describe(error))


def is_abortable(error: KafkaError) -> bool:
    """Whether the Kafka transaction can be aborted and its producer go on. Never after a time-out: the request
    that had no answer could still arrive, and act on the producer's next Kafka transaction (KAFKA-17754)."""
    if error.fatal() or error.code() in TIMEOUTS | FENCED:
        return False
    return error.code() in ABORTABLE or error.txn_requires_abort()


def make_fatal(error: KafkaError, reason: str | None = None) -> BatchOutcomeUnknown:
    """After any error that is not abortable the writer is dead. `reason`: what came before, if anything."""
    kind = StoreFenced if error.code() in FENCED else BatchOutcomeUnknown
    return kind(describe(error) if reason is None else f"{reason}; then {describe(error)}")


# --- the thread that owns a Kafka client, its queue of calls, and when the client is to be replaced ---

DEAF_S = 15.0
"""A client can stay deaf for ever after a broker was frozen (librdkafka 4615, 4820, 5301)."""


class Silence:
    """How long the calls about each thing have had no answer. A refusal is an answer; a pause without calls is none."""

    def __init__(self, limit_s: float = DEAF_S, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._limit_s = limit_s
        self._since: dict[Hashable, float] = {}

    def end(self, about: Hashable = None) -> None:
        """Somebody has answered."""
        self._since.pop(about, None)

    def go_on(self, about: Hashable = None, since: float | None = None) -> bool:
        """Nobody has answered a call that began then (now). Whether that has lasted for too long: replace the client.

        Then all begins anew: so the next one has as long as this one had.
        """
        now = self.now()
        first = self._since.setdefault(about, now if since is None else since)
        if now - first < self._limit_s:
            return False
        self._since.clear()
        return True


def let_go(end: Callable[[], object]) -> None:
    """Ends a replaced client on the side: that waits for its threads, and perhaps for a broker."""
    threading.Thread(target=end, name="kafka-let-go", daemon=True).start()


T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
_LOG = structlog.get_logger()


class _Call(NamedTuple):
    run: Callable[[], Any]
    future: "asyncio.Future[Any]"


class ClientThread:
    """Runs calls one at a time, in order, in a daemon thread: a call that hangs holds up neither loop nor exit."""

    def __init__(self, name: str, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        self._close_timeout_s = close_timeout_s
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.is_closed = False  # `close` was called
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Its result, or what it raised, in a future of the event loop. Raises StoreUnavailable after `close`."""
        if self.is_closed:
            raise StoreUnavailable(f"{self._thread.name} is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(_Call(call, future))
        return future

    async def close(self, last: Callable[[], None]) -> None:
        """Runs `last`, then ends the thread. A hanging one is left behind after a while."""
        if self.is_closed:
            return
        done = self.submit(last)
        self.is_closed = True
        self._calls.put(None)
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await done
        except TimeoutError:
            _LOG.error("kafka_client_abandoned", client=self._thread.name)
            return
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result = call.run()
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                self._answer(call.future, None, error)
            else:
                self._answer(call.future, result, None)
            del call  # or an idle thread keeps the last result alive

    def _answer(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is everybody who waits
            self._loop.call_soon_threadsafe(_resolve, future, result, error)


def _resolve(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # seen; or a caller that has gone would leave a complaint in the log
