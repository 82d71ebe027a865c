"""Which error leaves a batch aborted, which one its outcome unknown."""

from collections import deque
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError

from bridge.core.errors import BatchAborted, BatchOutcomeUnknown, StoreFenced
from bridge.core.message import Message
from bridge.store.kafka.options import ClientErrors, KafkaConfig
from bridge.store.kafka.transactional_producer import TransactionalProducer, no_limit
from bridge.store.message_store import AtomicBatch, Receipt
from tests.unit.store.kafka.fake_producer import FENCED, PURGED, TIMED_OUT, TOO_LARGE, FakeProducer, ImpliedReport

ORDER, CREDIT = Message("orders", b"k", b"v", (), 0), Message("credits", b"k", b"v", (), 1)
OP, POSITION = Message("op", b"id", b"{}", (), 0), Message("op", b"~", b"{}", (), 0)
BATCH = AtomicBatch([ORDER, CREDIT, ORDER], lambda _: [OP, POSITION])


@pytest.fixture
def fake() -> FakeProducer:
    """The client underneath."""
    return FakeProducer()


@pytest.fixture
def producer(fake: FakeProducer) -> TransactionalProducer:
    """Ready to write, impatient."""
    config = KafkaConfig({"bootstrap.servers": "nowhere:1"}, call_timeout_ms=1)
    made = TransactionalProducer(config, "id-0", no_limit, ClientErrors(), lambda _: fake)
    made.init(1)
    fake.calls.clear()
    return made


def test_batch_is_written_in_two_flushes(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """The closing records follow when all receipts are known, and the commit when they have been written."""
    seen: list[Receipt] = []

    def finish(receipts: Sequence[Receipt]) -> list[Message]:
        seen.extend(receipts)
        return [OP, POSITION]

    result = producer.write(AtomicBatch(BATCH.messages, finish))
    assert seen == [Receipt("orders", 0, 0), Receipt("credits", 1, 1), Receipt("orders", 0, 2)]
    assert (result.receipts, result.last_offset, result.last_stored_ms) == (seen, 4, 1_000)
    flushed = ["begin", "produce", "produce", "produce", "flush", "produce", "produce", "flush", "commit"]
    assert fake.calls == flushed


def test_report_without_an_offset_says_nothing_of_the_time(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """It has that of this machine's clock, by which an owner would ask too early, or too late (K)."""
    fake.make_report = ImpliedReport
    result = producer.write(BATCH)
    assert (result.last_offset, result.last_stored_ms) == (None, -1)


@pytest.mark.parametrize("call", ["begin", "produce", "flush", "commit"])
def test_timeout_is_unknown_and_nothing_is_tried(
    producer: TransactionalProducer, fake: FakeProducer, call: str
) -> None:
    """A request without an answer may arrive later: no abort, no second try, the producer is dead (D)."""
    fake.fail(call, TIMED_OUT)
    with pytest.raises(BatchOutcomeUnknown) as raised:
        producer.write(AtomicBatch(BATCH.messages, BATCH.finish))
    assert not isinstance(raised.value, StoreFenced)
    assert fake.calls[-1] == call
    assert "abort" not in fake.calls


@pytest.mark.parametrize(("each", "flushes"), [(2, 2), (1, 3)])
def test_busy_broker_is_waited_for_while_it_gets_on(
    producer: TransactionalProducer, fake: FakeProducer, each: int, flushes: int
) -> None:
    """A hundred new destinations are opened one by one: that takes longer than a call, and nobody is away (T)."""
    fake.reports_each = each
    producer.write(AtomicBatch(BATCH.messages, lambda _: [POSITION]))
    assert fake.calls.count("flush") == flushes + 1


@pytest.mark.parametrize(("each", "flushes"), [(0, 1), (1, 3)])
def test_broker_that_does_not_get_on_is_given_up(
    producer: TransactionalProducer, fake: FakeProducer, each: int, flushes: int
) -> None:
    """At once if nothing gets through, else below the time-out of the Kafka transaction."""
    fake.reports_each = each
    with pytest.raises(BatchOutcomeUnknown, match="not written in time"):
        producer.write(AtomicBatch([CREDIT, CREDIT, CREDIT, ORDER], BATCH.finish))
    assert fake.calls.count("flush") == flushes


@pytest.mark.parametrize("call", ["begin", "produce", "flush", "commit"])
def test_fenced_producer_says_so(producer: TransactionalProducer, fake: FakeProducer, call: str) -> None:
    """Whoever has the id now is told from an unknown outcome."""
    fake.fail(call, FENCED)
    with pytest.raises(StoreFenced):
        producer.write(AtomicBatch(BATCH.messages, BATCH.finish))


def test_reason_behind_a_bare_fatal_is_asked_for(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """`produce` says only that there was a fatal error; the next poll says which."""
    fake.fail("produce", KafkaError(KafkaError._FATAL))
    fake.fail("poll", FENCED)
    with pytest.raises(StoreFenced):
        producer.write(BATCH)


def test_fatal_error_inside_a_callback_is_found(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """Raised while reports are served it comes out as the cause of a SystemError."""
    wrapped = SystemError("returned a result with an exception set")
    wrapped.__cause__ = _raised(FENCED)
    fake.fail("flush", wrapped)
    with pytest.raises(StoreFenced):
        producer.write(BATCH)


def test_refused_message_aborts_and_names_its_topic(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """A definite refusal of one message, told by its report: a clean abort."""
    fake.report_errors["credits"] = deque([TOO_LARGE])
    with pytest.raises(BatchAborted) as raised:
        producer.write(BATCH)
    assert raised.value.topic == "credits"
    assert fake.calls[-1] == "abort"


def test_refused_message_is_named_although_others_are_purged(
    producer: TransactionalProducer, fake: FakeProducer
) -> None:
    """Those that go down with it are not the culprits."""
    fake.report_errors["orders"] = deque([PURGED, PURGED])
    fake.report_errors["credits"] = deque([TOO_LARGE])
    with pytest.raises(BatchAborted) as raised:
        producer.write(BATCH)
    assert raised.value.topic == "credits"


def test_message_the_client_does_not_take_aborts(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """Larger than the client's own limit: refused before anything was sent."""
    fake.fail("produce", TOO_LARGE)
    with pytest.raises(BatchAborted) as raised:
        producer.write(BATCH)
    assert (raised.value.topic, fake.calls[-1]) == ("orders", "abort")


def test_refused_closing_record_fails_the_commit(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """Closing records but the last have no report; the commit is refused in their stead."""
    fake.fail("commit", KafkaError(KafkaError._INCONSISTENT, txn_requires_abort=True))
    with pytest.raises(BatchAborted):
        producer.write(BATCH)
    assert fake.calls[-1] == "abort"


def test_failed_transaction_takes_no_more_and_says_why(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """`produce` only says "state" when an earlier record has failed; the commit, refused, tells the reason."""
    batch = AtomicBatch([], lambda _: [OP, POSITION])
    fake.fail("produce", KafkaError(KafkaError._STATE))
    fake.fail("commit", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, txn_requires_abort=True))
    with pytest.raises(BatchAborted, match="MSG_SIZE_TOO_LARGE"):
        producer.write(batch)


def test_lost_count_is_got_over_by_a_second_try(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """Purged without a culprit: aborted for a new epoch and written again, once (L)."""
    fake.report_errors["orders"] = deque([PURGED])
    assert len(producer.write(BATCH).receipts) == 3
    assert [call for call in fake.calls if call in {"begin", "abort", "commit"}] == [
        "begin",
        "abort",
        "begin",
        "commit",
    ]


def test_forgotten_id_is_no_lost_count(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """A second try would be let in, whoever has owned the queue meanwhile: nothing is tried or aborted (D)."""
    fake.report_errors["orders"] = deque([PURGED])
    fake.fail("begin again", KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING, txn_requires_abort=True))
    with pytest.raises(StoreFenced):
        producer.write(BATCH)
    assert "abort" not in fake.calls


def test_lost_count_twice_is_an_abort(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """There is no third try."""
    fake.report_errors["orders"] = deque([PURGED, PURGED, PURGED])
    with pytest.raises(BatchAborted) as raised:
        producer.write(AtomicBatch([ORDER], BATCH.finish))
    assert raised.value.topic is None
    assert fake.calls.count("begin") == 2


def test_failed_abort_is_unknown(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """Only an abort that succeeded leaves nothing open; the error still names what came before."""
    fake.report_errors["credits"] = deque([TOO_LARGE])
    fake.fail("abort", TIMED_OUT)
    with pytest.raises(BatchOutcomeUnknown, match=r"credits.*MSG_SIZE_TOO_LARGE.*_TIMED_OUT"):
        producer.write(BATCH)


def test_silent_topics_are_named(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """Messages without a report in time: unknown, and the error names their topics."""
    fake.is_silent = True
    with pytest.raises(BatchOutcomeUnknown, match="credits, orders"):
        producer.write(BATCH)
    assert "abort" not in fake.calls


def test_unknown_partition_is_looked_up_once(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """The topic may have grown; if not, the batch is aborted with its name."""
    missing = KafkaError(KafkaError._UNKNOWN_PARTITION)
    fake.fail("produce", missing)
    assert len(producer.write(BATCH).receipts) == 3
    fake.fail("produce", missing, missing)
    with pytest.raises(BatchAborted) as raised:
        producer.write(BATCH)
    assert raised.value.topic == "orders"


def test_full_client_queue_is_unknown_in_the_end(producer: TransactionalProducer, fake: FakeProducer) -> None:
    """It waits for room within its time-out; nothing was committed, and the writer is given up."""
    fake.capacity, fake.is_silent = 1, True
    with pytest.raises(BatchOutcomeUnknown, match="no place"):
        producer.write(BATCH)


def test_init_translates_its_errors(fake: FakeProducer) -> None:
    """Fencing can fail by another's fencing, or by silence."""
    config = KafkaConfig({"bootstrap.servers": "nowhere:1"})
    made = TransactionalProducer(config, "id-0", no_limit, ClientErrors(), lambda _: fake)
    fake.fail("init", FENCED, TIMED_OUT)
    with pytest.raises(StoreFenced):
        made.init(1)
    with pytest.raises(BatchOutcomeUnknown):
        made.init(1)


def _raised(error: KafkaError) -> BaseException:
    fake = FakeProducer()
    fake.fail("flush", error)
    return fake.failures["flush"].popleft()
