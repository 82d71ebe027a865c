"""Plain puts over a producer that does what a test says."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.core.message import Message
from bridge.store.kafka import producer
from bridge.store.kafka.client import Silence
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.producer import AppendClient
from bridge.store.message_store import PutResult, PutStatus, Refusal
from tests.unit.store.kafka.fake_producer import FENCED, TIMED_OUT, TOO_LARGE, FakeProducer, ImpliedReport, StrayReport

MESSAGES = [Message("orders", b"k", b"%d" % n, (), 0) for n in range(3)]
DEADLINE_S = 10


class Clients:
    """An AppendClient, and the producers it has made."""

    def __init__(self) -> None:
        self.made: list[FakeProducer] = []
        self.refusals: deque[KafkaException] = deque()  # of making another one
        config = KafkaConfig({"bootstrap.servers": "nowhere:1"})
        self.now_s = 0.0
        silence = Silence(15, lambda: self.now_s)
        self.append = AppendClient(config, make_producer=self._make, room_wait_s=0.02, silence=silence)

    def _make(self, options: dict[str, Any]) -> Any:
        if self.refusals:
            raise self.refusals.popleft()
        self.made.append(FakeProducer(options))
        return self.made[-1]


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    """Closed at the end."""
    opened = Clients()
    yield opened
    await opened.append.close()


async def put(clients: Clients, messages: list[Message] | None = None) -> list[PutResult]:
    async with asyncio.timeout(DEADLINE_S):
        return await clients.append.put_many(MESSAGES if messages is None else messages)


async def test_each_message_has_its_own_report(clients: Clients) -> None:
    """Offset and time of each, in the order of the call."""
    assert await put(clients) == [PutResult(PutStatus.PUT_OK, n, 1_000) for n in range(3)]
    assert await put(clients, []) == []


async def test_time_of_what_a_later_answer_implies_is_not_known(clients: Clients) -> None:
    """The report of a message whose own answer was lost has the time of this machine: it is no append time."""
    clients.made[0].make_report = ImpliedReport
    assert await put(clients) == [PutResult(PutStatus.PUT_OK)] * 3


async def test_definite_and_unknown_failures_are_told_apart(clients: Clients) -> None:
    """A time-out is never a refusal (A)."""
    clients.made[0].report_errors["orders"] = deque(
        [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), KafkaError(KafkaError._MSG_TIMED_OUT)]
    )
    denied, late, fine = await put(clients)
    assert (denied.status, denied.refusal) == (PutStatus.REFUSED, Refusal.NOT_AUTHORISED)
    assert (late.status, late.refusal) == (PutStatus.OUTCOME_UNKNOWN, None)
    assert fine.status is PutStatus.PUT_OK


async def put_backwards(clients: Clients, messages: list[Message]) -> list[PutResult]:
    """All are reported at once, the last one first."""
    fake = clients.made[0]
    fake.is_silent = fake.is_reversed = True
    await until_polled(fake)
    putting = clients.append.put_many(messages)
    fake.is_silent = False
    async with asyncio.timeout(DEADLINE_S):
        return await putting


async def test_reports_that_overtake_each_other_find_their_messages(clients: Clients) -> None:
    """A failure that overtakes another report of its queue is its own message's, not the first one's (A)."""
    clients.made[0].report_errors["orders"] = deque([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    first, second, last = await put_backwards(clients, MESSAGES)
    assert [first.queue_offset, second.queue_offset] == [0, 1]
    assert last.refusal is Refusal.NOT_AUTHORISED


async def test_equal_messages_with_different_fates_are_unknown(clients: Clients) -> None:
    """Nobody can say which of them was written (A)."""
    clients.made[0].report_errors["orders"] = deque([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    results = await put(clients, [MESSAGES[0], MESSAGES[0], MESSAGES[1]])
    assert [result.status for result in results] == [PutStatus.OUTCOME_UNKNOWN] * 2 + [PutStatus.PUT_OK]


async def test_failure_of_a_message_that_is_not_known_is_unknown(clients: Clients) -> None:
    """What the client reports is not what was given: it is believed for nobody, and nobody waits for ever (A)."""
    fake = clients.made[0]
    fake.is_garbling = True
    fake.report_errors["orders"] = deque([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    assert [result.status for result in await put(clients)] == [PutStatus.OUTCOME_UNKNOWN] * 3


async def test_queues_and_topics_keep_their_own_offsets(clients: Clients) -> None:
    """Their reports come mixed."""
    queues = [Message("orders", b"k", b"v", (), n) for n in range(3)]
    assert [result.queue_offset for result in await put_backwards(clients, queues)] == [0, 1, 2]
    topics = [Message(f"orders-{n}", b"k", b"v", (), 0) for n in range(3)]
    assert [result.queue_offset for result in await put_backwards(clients, topics)] == [3, 4, 5]


async def test_refused_request_is_sent_again_message_by_message(clients: Clients) -> None:
    """Only those of the refused request, through a second producer with one message a request."""
    clients.made[0].report_errors["orders"] = deque([TOO_LARGE, TOO_LARGE])
    results = await put(clients)
    assert [result.status for result in results] == [PutStatus.PUT_OK] * 3
    assert [made.options.get("batch.num.messages") for made in clients.made] == [None, 1]
    assert clients.made[1].calls.count("produce") == 2


async def test_message_refused_alone_is_refused(clients: Clients) -> None:
    """There is no third try."""
    clients.made[0].report_errors["orders"] = deque([TOO_LARGE])
    await put(clients)
    clients.made[0].report_errors["orders"].append(TOO_LARGE)
    clients.made[1].report_errors["orders"] = deque([TOO_LARGE])
    (result,) = await put(clients, MESSAGES[:1])
    assert (result.status, result.refusal) == (PutStatus.REFUSED, Refusal.MESSAGE_TOO_LARGE)


async def test_message_the_client_does_not_take_is_refused(clients: Clients) -> None:
    """Nothing was sent, whatever the reason; its neighbours are."""
    clients.made[0].fail("produce", TOO_LARGE)
    clients.made[0].fail("produce", KafkaError(KafkaError._FATAL))
    large, broken, fine = await put(clients)
    assert (large.status, large.refusal) == (PutStatus.REFUSED, Refusal.MESSAGE_TOO_LARGE)
    assert (broken.status, broken.refusal) == (PutStatus.REFUSED, Refusal.STORE_BUSY)
    assert fine.status is PutStatus.PUT_OK


async def test_full_queue_refuses_in_the_end(clients: Clients) -> None:
    """It waits for room, but not for ever; what was taken keeps its own outcome (A)."""
    fake = clients.made[0]
    fake.capacity, fake.is_silent = 1, True
    waiting = asyncio.create_task(put(clients))
    first_refused = asyncio.create_task(put(clients, MESSAGES[:1]))
    (refused,) = await first_refused
    assert (refused.status, refused.refusal) == (PutStatus.REFUSED, Refusal.STORE_BUSY)
    fake.is_silent = False
    taken, *rest = await waiting
    assert taken.status is PutStatus.PUT_OK
    assert all(result.refusal in {Refusal.STORE_BUSY, None} for result in rest)


async def test_fatal_error_makes_a_new_producer(clients: Clients) -> None:
    """The old one takes nothing any more; what it held is unknown, and the next put works (A, T)."""
    old = clients.made[0]
    old.is_silent = True
    lost = asyncio.create_task(put(clients))
    await asyncio.sleep(0)
    old.fail("poll", FENCED)
    assert [result.status for result in await lost] == [PutStatus.OUTCOME_UNKNOWN] * 3
    assert [result.status for result in await put(clients)] == [PutStatus.PUT_OK] * 3
    assert len(clients.made) == 2


async def test_new_producer_that_cannot_be_made_is_made_later(clients: Clients) -> None:
    """For want of threads or files: the thread that polls goes on, and everybody is answered."""
    clients.refusals += [KafkaException(TIMED_OUT)] * 2
    clients.made[0].is_silent = True
    lost = asyncio.create_task(put(clients))
    await asyncio.sleep(0)
    clients.made[0].fail("poll", FENCED)
    assert [result.status for result in await lost] == [PutStatus.OUTCOME_UNKNOWN] * 3
    assert not clients.refusals
    assert [result.status for result in await put(clients)] == [PutStatus.PUT_OK] * 3


async def test_producers_that_fail_at_once_are_made_a_second_apart(clients: Clients) -> None:
    """Whoever may write nothing is refused each new one, and made 25 a second."""
    clients.made[0].is_silent = True
    lost = asyncio.create_task(put(clients))
    await asyncio.sleep(0)
    clients.made[0].fail("poll", FENCED)
    await lost
    clients.made[1].fail("poll", FENCED)
    await until_polled(clients.made[1])
    assert len(clients.made) == 2
    clients.now_s += 1
    await put(clients)
    assert [result.status for result in await put(clients)] == [PutStatus.PUT_OK] * 3
    assert len(clients.made) == 3


async def test_reports_of_a_queue_nobody_wrote_to_are_one_call_s_own(clients: Clients) -> None:
    """Its messages are unknown; what came with them is told as always."""
    clients.made[0].is_silent = True
    odd = asyncio.create_task(put(clients, [Message("orders", b"k", b"v", (), n) for n in range(2)]))
    right = asyncio.create_task(put(clients))
    await until_polled(clients.made[0])
    clients.made[0].make_report = StrayReport
    clients.made[0].is_silent = False
    assert [result.status for result in await odd] == [PutStatus.OUTCOME_UNKNOWN] * 2
    assert [result.status for result in await right] == [PutStatus.PUT_OK] * 3


async def test_deaf_producer_is_replaced(clients: Clients) -> None:
    """It raises nothing, it only never reports: what it held is unknown and not sent again, the next put works."""
    old = clients.made[0]
    old.is_silent = True
    lost = asyncio.create_task(put(clients))
    await until_polled(old)
    clients.now_s = 14.9
    await until_polled(old)
    assert not lost.done()
    assert len(clients.made) == 1
    clients.now_s = 15.0
    assert [result.status for result in await lost] == [PutStatus.OUTCOME_UNKNOWN] * 3
    assert [result.status for result in await put(clients)] == [PutStatus.PUT_OK] * 3
    assert [made.calls.count("produce") for made in clients.made] == [3, 3]


async def until_polled(fake: FakeProducer) -> None:
    """Three times: what is looked at between the last two was looked at after now."""
    for _ in range(3):
        fake.polled.clear()
        assert await asyncio.to_thread(fake.polled.wait, DEADLINE_S)


async def test_producer_at_rest_is_kept(clients: Clients) -> None:
    """Time without puts is no silence."""
    for _ in range(3):
        clients.now_s += 3_600
        assert [result.status for result in await put(clients)] == [PutStatus.PUT_OK] * 3
    assert len(clients.made) == 1


async def test_closing_answers_everybody(clients: Clients) -> None:
    """Who still waits hears that nobody knows; who comes later, that nothing was done (A)."""
    clients.made[0].is_silent = True
    waiting = asyncio.create_task(put(clients))
    await asyncio.sleep(0)
    await clients.append.close()
    assert [result.status for result in await waiting] == [PutStatus.OUTCOME_UNKNOWN] * 3
    assert [result.refusal for result in await put(clients)] == [Refusal.STORE_BUSY] * 3


async def test_cancelled_caller_disturbs_nobody(clients: Clients) -> None:
    """Its reports come all the same, and find nobody."""
    fake = clients.made[0]
    fake.is_silent = True
    gone, stays = asyncio.create_task(put(clients)), asyncio.create_task(put(clients))
    await asyncio.sleep(0)
    gone.cancel()
    fake.is_silent = False
    assert [result.status for result in await stays] == [PutStatus.PUT_OK] * 3


async def test_closing_answers_those_who_wait_for_room(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their next look comes when the producer is gone already: nothing was sent, and closing does not fail."""
    monkeypatch.setattr(producer, "_ROOM_STEP_S", 0.2)  # the thread needs less
    clients.made[0].capacity, clients.made[0].is_silent = 1, True
    putting = clients.append.put_many(MESSAGES)
    await asyncio.sleep(0)
    await clients.append.close()
    async with asyncio.timeout(DEADLINE_S):
        results = await putting
    assert [result.status for result in results] == [PutStatus.OUTCOME_UNKNOWN] + [PutStatus.REFUSED] * 2


async def test_closing_leaves_no_client_behind(clients: Clients) -> None:
    """What would be sent again is not, once it is closing, though its turn comes only then (A)."""
    fake = clients.made[0]
    fake.report_errors["orders"] = deque([TOO_LARGE])
    putting = clients.append.put_many(MESSAGES)
    for _ in range(3):  # all is reported, and nobody has looked at it
        fake.polled.clear()
        assert fake.polled.wait(DEADLINE_S)
    await asyncio.sleep(0)
    await clients.append.close()
    refused, *written = await putting
    assert (refused.refusal, len(clients.made)) == (Refusal.STORE_BUSY, 1), "it may fit, sent alone"
    assert [result.status for result in written] == [PutStatus.PUT_OK] * 2


async def test_calls_wait_until_their_fate_is_known(clients: Clients) -> None:
    """Whoever has gone meanwhile, and also where nothing was taken: else one day everything would seem busy."""
    cancelled = clients.append.put_many(MESSAGES)
    assert clients.append.waiting == 1
    cancelled.cancel()
    await put(clients)
    clients.made[0].fail("produce", TOO_LARGE, TOO_LARGE, TOO_LARGE)
    await put(clients)
    await put(clients, [])
    assert clients.append.waiting == 0
