"""Appends to the journal."""

import asyncio

import pytest

from bridge.clock import KafkaTime
from bridge.core.message import Message
from bridge.core.topics import InternalTopics
from bridge.service.journal import Deadline, Journal
from bridge.store.memory.link import Fate, StepKind
from bridge.store.message_store import PutStatus, Refusal
from tests.support.memory_faults import ScriptedFaults
from tests.support.memory_world import SoundLog, make_memory_world

HALF = InternalTopics().half


def test_records_in_flight_are_bounded() -> None:
    """What is too much is refused, certainly unwritten; the bound is given back with the answers, late ones too."""
    faults = ScriptedFaults()
    memory = make_memory_world(faults=faults)
    journal = Journal(memory.store, InternalTopics(), KafkaTime(memory.clock), 3, SoundLog())
    message = Message(HALF, None, b"", (), 0)

    async def story() -> None:
        faults.give(StepKind.PUT, Fate(request_ms=300))
        late = await journal.append([message, message], Deadline.after(memory.clock, 100))
        assert [result.status for result in late] == [PutStatus.OUTCOME_UNKNOWN] * 2
        assert journal.in_flight == 2
        busy = await journal.append([message, message], Deadline.after(memory.clock, 100))
        assert [result.refusal for result in busy] == [Refusal.STORE_BUSY] * 2
        await memory.clock.sleep_ms(300)
        assert journal.in_flight == 0
        done = await journal.append([message], Deadline.after(memory.clock, 100))
        assert [(result.status, result.queue_offset) for result in done] == [(PutStatus.PUT_OK, 2)]
        assert await journal.append([], Deadline.after(memory.clock, 100)) == []

    asyncio.run(memory.clock.drive(story()))


def test_why_kafka_takes_nothing_is_told_while_it_lasts() -> None:
    """Callers are told to come again, for ever: an operator has to know (A). Not of a record that is too large."""
    memory = make_memory_world()
    journal = Journal(memory.store, InternalTopics(), KafkaTime(memory.clock), 3, SoundLog())
    topic = memory.cluster.log.topics[HALF]

    async def put(value: bytes = b"") -> Refusal | None:
        (result,) = await journal.append([Message(HALF, None, value, (), 2)], Deadline.after(memory.clock, 100))
        return result.refusal

    async def story() -> None:
        assert await put(bytes(9_000_000)) is Refusal.MESSAGE_TOO_LARGE
        assert journal.describe_refusals() == ""
        topic.is_denied = True
        assert await put() is Refusal.NOT_AUTHORISED
        assert journal.describe_refusals().startswith(f"{HALF}[2] takes no records: ")
        topic.is_denied = False
        assert await put() is None
        assert journal.describe_refusals() == ""
        topic.is_denied = True
        await put()
        await memory.clock.sleep_ms(60_000)  # nobody has tried since
        assert journal.describe_refusals() == ""

    asyncio.run(memory.clock.drive(story()))


def test_records_that_were_not_taken_are_not_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails while it is called gives the bound back; else the process would be full one day."""
    memory = make_memory_world()
    journal = Journal(memory.store, InternalTopics(), KafkaTime(memory.clock), 3, SoundLog())

    def fail(_: object) -> None:
        raise MemoryError

    async def story() -> None:
        monkeypatch.setattr(memory.store, "put_many", fail)
        with pytest.raises(MemoryError):
            await journal.append([Message(HALF, queue_id=0)], Deadline.after(memory.clock, 100))
        assert journal.in_flight == 0

    asyncio.run(memory.clock.drive(story()))


def test_journal_that_begins_again_at_its_first_record_is_noticed() -> None:
    """The smallest log there can be: one record was there, and the next one takes its place (54)."""
    memory = make_memory_world()
    journal = Journal(memory.store, InternalTopics(), KafkaTime(memory.clock), 3, SoundLog())

    async def append() -> PutStatus:
        [result] = await journal.append([Message(HALF, queue_id=0)], Deadline.after(memory.clock, 5_000))
        return result.status

    async def story() -> None:
        assert await append() is PutStatus.PUT_OK
        memory.cluster.log.delete_topic(HALF)
        memory.cluster.log.create_topic(HALF, 4)
        assert await append() is PutStatus.OUTCOME_UNKNOWN
        assert await append() is PutStatus.PUT_OK

    asyncio.run(memory.clock.drive(story()))


def test_append_times_are_kafkas_time() -> None:
    """Delivery reports tell the time, whoever waits for them."""
    memory = make_memory_world()
    time = KafkaTime(memory.clock)

    async def story() -> None:
        await Journal(memory.store, InternalTopics(), time, 3, SoundLog()).append(
            [Message(HALF, queue_id=0)], Deadline.after(memory.clock, 100)
        )
        assert time.now_ms() == memory.clock.now_ms()

    asyncio.run(memory.clock.drive(story()))
