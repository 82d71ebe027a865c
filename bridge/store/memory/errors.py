"""The answers "no" of the in-memory log, in Kafka's words, and what they mean to the ports."""

from enum import Enum

from bridge.core.errors import StoreError, StoreTimeout, StoreUnavailable
from bridge.store.message_store import PutResult, PutStatus, Refusal


class Code(Enum):
    """Kafka's error codes, as far as the log uses them."""

    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    LOCAL_UNKNOWN_PARTITION = "_UNKNOWN_PARTITION"  # the client library's own
    TOPIC_ALREADY_EXISTS = "TOPIC_ALREADY_EXISTS"
    INVALID_TOPIC = "INVALID_TOPIC"
    INVALID_CONFIG = "INVALID_CONFIG"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    LEADER_NOT_AVAILABLE = "LEADER_NOT_AVAILABLE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    TOPIC_AUTHORIZATION_FAILED = "TOPIC_AUTHORIZATION_FAILED"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    INVALID_RECORD = "INVALID_RECORD"
    OUT_OF_ORDER_SEQUENCE_NUMBER = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    PRODUCER_FENCED = "PRODUCER_FENCED"
    INVALID_PRODUCER_ID_MAPPING = "INVALID_PRODUCER_ID_MAPPING"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    CONCURRENT_TRANSACTIONS = "CONCURRENT_TRANSACTIONS"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"


FENCED = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
ABORTABLE = frozenset(
    {
        Code.LOCAL_UNKNOWN_PARTITION,
        Code.MESSAGE_TOO_LARGE,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.INVALID_TIMESTAMP,
        Code.INVALID_RECORD,
    }
)
REFUSALS = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Refusal.UNKNOWN_TOPIC,
    Code.MESSAGE_TOO_LARGE: Refusal.MESSAGE_TOO_LARGE,
    Code.TOPIC_AUTHORIZATION_FAILED: Refusal.NOT_AUTHORISED,
    Code.INVALID_TIMESTAMP: Refusal.INVALID_TIMESTAMP,
    Code.INVALID_RECORD: Refusal.OTHER,
}


class LogError(Exception):
    """The log answered no. `topic` where it names one."""

    def __init__(self, code: Code, topic: str | None = None) -> None:
        super().__init__(code.value if topic is None else f"{code.value}: {topic}")
        self.code = code
        self.topic = topic


class NoAnswerError(Exception):
    """No answer in time: the request may have been carried out, or may be later."""


def make_store_error(error: LogError | NoAnswerError) -> StoreError:
    """What a read, or a plain commit of an offset, raises."""
    if isinstance(error, NoAnswerError) or error.code is Code.LEADER_NOT_AVAILABLE:
        return StoreTimeout(str(error))
    return StoreUnavailable(str(error))


def make_refused_put(error: LogError | NoAnswerError) -> PutResult:
    """What a put answers. A leaderless queue is a time-out for the client, so the outcome is unknown."""
    refusal = REFUSALS.get(error.code) if isinstance(error, LogError) else None
    status = PutStatus.OUTCOME_UNKNOWN if refusal is None else PutStatus.REFUSED
    return PutResult(status, refusal=refusal, detail=str(error))
