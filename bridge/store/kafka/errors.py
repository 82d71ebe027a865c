"""What Kafka's and the client's errors mean to the ports: the one table, tested line by line."""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from bridge.core.errors import BatchOutcomeUnknown, StoreError, StoreFenced, StoreTimeout, StoreUnavailable
from bridge.store.message_store import PutResult, PutStatus, Refusal

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

FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})  # noqa: SLF001

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
