"""The table of Kafka's errors, line by line."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.core.errors import BatchOutcomeUnknown, StoreFenced, StoreTimeout, StoreUnavailable
from bridge.store.kafka.client import error_of, is_abortable, make_failed_put, make_fatal, make_store_error
from bridge.store.message_store import PutStatus, Refusal

DEFINITE = {
    "MSG_SIZE_TOO_LARGE": Refusal.MESSAGE_TOO_LARGE,
    "INVALID_MSG_SIZE": Refusal.MESSAGE_TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": Refusal.MESSAGE_TOO_LARGE,
    "TOPIC_AUTHORIZATION_FAILED": Refusal.NOT_AUTHORISED,
    "CLUSTER_AUTHORIZATION_FAILED": Refusal.NOT_AUTHORISED,
    "UNKNOWN_TOPIC_OR_PART": Refusal.UNKNOWN_TOPIC,
    "TOPIC_EXCEPTION": Refusal.UNKNOWN_TOPIC,
    "_UNKNOWN_TOPIC": Refusal.UNKNOWN_TOPIC,
    "_UNKNOWN_PARTITION": Refusal.UNKNOWN_TOPIC,
    "INVALID_TIMESTAMP": Refusal.INVALID_TIMESTAMP,
    "NOT_ENOUGH_REPLICAS": Refusal.STORE_BUSY,
    "_QUEUE_FULL": Refusal.STORE_BUSY,
    "INVALID_RECORD": Refusal.OTHER,
    "POLICY_VIOLATION": Refusal.OTHER,
}
UNKNOWN = [
    "_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "_PURGE_INFLIGHT", "_PURGE_QUEUE", "_FATAL", "_FENCED", "OUT_OF_ORDER_SEQUENCE_NUMBER", "NETWORK_EXCEPTION",
    "KAFKA_STORAGE_ERROR", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "_DESTROY", "_ALL_BROKERS_DOWN",
    "UNKNOWN",
]  # fmt: skip
NEVER_ABORTABLE = [
    "_TIMED_OUT", "_MSG_TIMED_OUT", "_TRANSPORT", "REQUEST_TIMED_OUT", "_FENCED", "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "NETWORK_EXCEPTION",
]  # fmt: skip
ABORTABLE = [
    "MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_PRODUCER_ID",
    "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID", "STALE_MEMBER_EPOCH",
    "INVALID_TIMESTAMP", "_INCONSISTENT", "_PURGE_QUEUE",
]  # fmt: skip


def make_error(name: str, **flags: bool) -> KafkaError:
    return KafkaError(getattr(KafkaError, name), **flags)


@pytest.mark.parametrize(("name", "refusal"), DEFINITE.items())
def test_definite_failure_is_a_refusal(name: str, refusal: Refusal) -> None:
    """Certainly not written (A)."""
    result = make_failed_put(make_error(name))
    assert (result.status, result.refusal, result.queue_offset) == (PutStatus.REFUSED, refusal, -1)
    assert name in result.detail


@pytest.mark.parametrize("name", UNKNOWN)
def test_everything_else_is_unknown(name: str) -> None:
    """May be written, now or later: never called a refusal (A)."""
    result = make_failed_put(make_error(name))
    assert (result.status, result.refusal) == (PutStatus.OUTCOME_UNKNOWN, None)


@pytest.mark.parametrize("name", NEVER_ABORTABLE)
def test_silence_and_fencing_are_never_abortable(name: str) -> None:
    """Even when the client asks for an abort: what was sent may still arrive (D)."""
    assert not is_abortable(make_error(name, txn_requires_abort=True))


@pytest.mark.parametrize("name", ABORTABLE)
def test_definite_refusals_are_abortable(name: str) -> None:
    """Unless the client calls them fatal."""
    assert is_abortable(make_error(name))
    assert not is_abortable(make_error(name, fatal=True))


def test_abort_the_client_asks_for_is_abortable() -> None:
    """An error the table does not know, flagged as abortable; without the flag it is not."""
    assert is_abortable(make_error("INVALID_GROUP_ID", txn_requires_abort=True))
    assert not is_abortable(make_error("INVALID_GROUP_ID"))


@pytest.mark.parametrize(
    "name", ["_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"]
)
def test_fencing_has_its_own_error(name: str) -> None:
    """All words for it."""
    assert isinstance(make_fatal(make_error(name, fatal=True)), StoreFenced)


def test_other_fatal_errors_are_unknown() -> None:
    """They may come after the commit has been written."""
    unknown = make_fatal(make_error("INVALID_TXN_STATE", fatal=True), "orders: too large")
    assert type(unknown) is BatchOutcomeUnknown
    assert str(unknown).startswith("orders: too large; then INVALID_TXN_STATE")


@pytest.mark.parametrize(
    "name", ["_TIMED_OUT", "_TRANSPORT", "_DESTROY_BROKER", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "_NOENT"]
)
def test_reads_without_an_answer_time_out(name: str) -> None:
    """A retry helps."""
    assert isinstance(make_store_error(make_error(name)), StoreTimeout)


@pytest.mark.parametrize("name", ["UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED", "INVALID_CONFIG"])
def test_reads_with_a_refusal_are_unavailable(name: str) -> None:
    """The answer was no."""
    assert isinstance(make_store_error(make_error(name)), StoreUnavailable)


def test_error_is_found_in_the_chain() -> None:
    """In the exception, its cause or its context; else it is unknown, with the text."""
    inner = KafkaException(make_error("_FENCED"))
    outer = SystemError("a callback returned a result with an exception set")
    outer.__cause__ = inner
    assert error_of(inner).code() == error_of(outer).code() == KafkaError._FENCED
    bare = error_of(SystemError("something else"))
    assert (bare.code(), bare.str()) == (KafkaError.UNKNOWN, "something else")
