"""Plain puts: an idempotent producer, one thread that polls, one wake-up of the loop for each poll."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from bridge.core.message import BY_KEY, Message
from bridge.fault_points import FaultPoint, reach
from bridge.store.kafka.client import (
    CLIENT_ERRORS,
    SILENCE,
    WHOLE_REQUEST_REFUSALS,
    Silence,
    error_of,
    let_go,
    make_failed_put,
)
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, Manner, ProducerFactory, append_options
from bridge.store.message_store import PutResult, PutStatus, Refusal

ROOM_WAIT_S = 1.0  # for a place in the client's queue
_ROOM_STEP_S = 0.002
_FLUSH_S = 5.0
_RENEWAL_PAUSE_S = 1.0  # where the next one fails at once too, as without the right to write
_PURGE_S = 1.0
_LOG = structlog.get_logger()
DeliveryCallback = Callable[[KafkaError | None, Report], None]
Give = Callable[[list[PutResult]], None]
_PUT_OK = PutStatus.PUT_OK  # Python finds the members of an enum only slowly
_WRITTEN = PutResult(_PUT_OK)
_UNREPORTED = PutResult(PutStatus.OUTCOME_UNKNOWN, detail="no report")
_NOTHING: Iterator[tuple[PutResult, int | None]] = iter(())
_BUSY = PutResult(PutStatus.REFUSED, refusal=Refusal.STORE_BUSY, detail="the client's queue is full")
CLOSED = PutResult(PutStatus.REFUSED, refusal=Refusal.STORE_BUSY, detail="the store is closed")


class Finished(deque["PutCall"]):
    """Calls that have all their reports. `has_heard`: a broker has answered, be it for a part of a call."""

    has_heard = False


class PutCall:
    """The messages of one call, and one answer for all of them.

    Reports are counted by the polling thread alone, `_expected` by the loop's alone; each looks at both after
    its own step, so one of them sees the end, or both.
    """

    __slots__ = (
        "_answer",
        "_expected",
        "_finished",
        "_given",
        "_has_failed",
        "_reports",
        "again",
        "is_ended",
        "messages",
    )

    def __init__(self, messages: Sequence[Message], finished: Finished, answer: Give) -> None:
        self.messages = messages
        self.again: list[int] = []  # refused, but perhaps only for a neighbour in the same request
        self._answer: Give | None = answer
        self._finished = finished
        self._expected = len(messages)
        self._reports: list[Report] = []
        self._given: dict[int, PutResult] = {}
        self._has_failed = False
        self.is_ended = False  # the results have been looked at, once

    def take(self, error: KafkaError | None, report: Report) -> None:
        """The delivery callback, in the polling thread. 100,000 a second want to pass here."""
        if error is None:
            self._finished.has_heard = True
        else:
            self._note_error(error)
        self._reports.append(report)  # last: the loop may see the end as soon as it is there
        if len(self._reports) == self._expected:
            self._finished.append(self)

    def _note_error(self, error: KafkaError) -> None:
        """A message was not, or not certainly, written."""
        self._has_failed = True
        if error.code() not in SILENCE:
            self._finished.has_heard = True

    @property
    def is_written(self) -> bool:
        """Whether all has been reported, and as written."""
        return bool(self._reports) and not self._has_failed

    def give(self, place: int, result: PutResult) -> None:
        """A result that needs no report: the client did not take the message."""
        self._given[place] = result
        self._expected -= 1

    def answer(self, results: list[PutResult]) -> None:
        """The results, once."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(results)

    @property
    def is_over(self) -> bool:
        """Whether no report is missing."""
        return len(self._reports) == self._expected

    def find_results(self) -> list[PutResult]:
        """One for each message, once all have been reported. Without failures, reports of one queue come in order."""
        messages, reports = self.messages, self._reports
        if len(reports) == len(messages) == 1 and not self._has_failed:
            return [_make_result(reports[0])]
        queues = {message.queue_id for message in messages}
        if self._has_failed or self._given or BY_KEY in queues or len({message.topic for message in messages}) > 1:
            return self._match(is_by_key=BY_KEY in queues)
        if len(queues) == 1:
            return [_make_result(report) for report in reports]
        results: dict[int, list[PutResult]] = {queue_id: [] for queue_id in queues}
        for report in reports:
            results[report.partition()].append(_make_result(report))  # type: ignore[index]
        turns = {queue_id: iter(of_queue) for queue_id, of_queue in results.items()}
        return [next(turns[message.queue_id]) for message in messages]

    def _match(self, *, is_by_key: bool) -> list[PutResult]:
        """Reports of failures may overtake others: each belongs to a message with its key and value. Where equal ones
        had different fates, nobody can say which had which."""
        reports: dict[tuple[object, ...], list[Report]] = {}
        for report in self._reports:
            queue_id = BY_KEY if is_by_key else report.partition()
            about = report.topic(), queue_id, report.key() or b"", report.value() or b""
            reports.setdefault(about, []).append(report)
        turns = {about: iter(_judge(alike)) for about, alike in reports.items()}
        results = []
        for place, message in enumerate(self.messages):
            queue_id = BY_KEY if is_by_key else message.queue_id
            about = message.topic, queue_id, message.key or b"", message.value or b""
            if place in self._given:
                result, code = self._given[place], None
            else:
                result, code = next(turns.get(about, _NOTHING), (_UNREPORTED, None))
            results.append(result)
            if code in WHOLE_REQUEST_REFUSALS:
                self.again.append(place)
        return results


def _judge(alike: Sequence[Report]) -> list[tuple[PutResult, int | None]]:
    """Result and error code for each of the reports of equal messages."""
    errors = [report.error() for report in alike]
    codes = {None if error is None else error.code() for error in errors}
    if len(codes) > 1:
        return [(_UNREPORTED, None)] * len(alike)
    return [
        (_make_result(report), None) if error is None else (make_failed_put(error), error.code())
        for report, error in zip(alike, errors, strict=True)
    ]


def _make_result(report: Report) -> PutResult:
    offset = report.offset()
    if offset is None or offset < 0:  # its own answer was lost: then the time is not the append time either
        return _WRITTEN
    return PutResult(_PUT_OK, offset, report.timestamp()[1])


class AppendClient:
    """Puts messages and answers when Kafka has. Made inside the event loop it serves.

    `cleared`: complaints that end when something is written, also those of another client of the same brokers, which
    may rest for long and would complain of them all the time.
    """

    def __init__(
        self,
        config: KafkaConfig,
        manner: Manner = Manner.PROMPT,
        *,
        make_producer: ProducerFactory = Producer,
        room_wait_s: float = ROOM_WAIT_S,
        silence: Silence | None = None,
    ) -> None:
        self._silence = silence or Silence()
        self._swap = threading.Lock()  # nothing is handed to a producer that is being let go
        self._room_wait_s = room_wait_s
        self.errors = ClientErrors()
        self.cleared = [self.errors]
        self._config = config
        self._manner = manner
        self._make_producer = make_producer
        self._loop = asyncio.get_running_loop()
        self.waiting = 0  # calls whose fate is not known
        self._finished = Finished()
        self._one_by_one: AppendClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._renewed_at = -_RENEWAL_PAUSE_S
        self._producer = self._open()
        self._thread = threading.Thread(target=self._run, name=f"kafka-{manner.value}", daemon=True)
        self._thread.start()

    def put_many(self, messages: Sequence[Message]) -> "asyncio.Future[list[PutResult]]":
        """The same as `put_then`, awaited. A caller that is gone changes nothing."""
        future: asyncio.Future[list[PutResult]] = self._loop.create_future()

        def give(results: list[PutResult]) -> None:
            if not future.done():
                future.set_result(results)

        self.put_then(messages, give)
        return future

    def put_then(self, messages: Sequence[Message], give: Give) -> None:
        """Gives one result for each message, same order. Never raises for a broker's answer.

        A refused message takes the others of its request with it; those are sent again, each alone, and so may come
        after later ones of the same call.
        """
        if self._is_closing or not messages:
            give([CLOSED] * len(messages))
            return
        call = PutCall(messages, self._finished, give)
        self.waiting += 1
        enqueued = self._enqueue(call, messages, 0)
        if enqueued < len(messages):
            self._run_beside(self._enqueue_slowly(call, messages, enqueued))
        elif call.is_over:  # the client has taken none
            self._end_calls([call])
        reach(FaultPoint.APPEND_HANDED_OVER)

    async def close(self) -> None:
        """Waits a little for what is in flight; callers that still wait get an unknown outcome."""
        self._is_closing = True
        if self._one_by_one is not None:
            await self._one_by_one.close()
        await asyncio.to_thread(self._thread.join)
        await asyncio.gather(*self._tasks)

    # --- in the loop's thread ---

    def _open(self) -> Producer:
        return self._make_producer(append_options(self._config, self.errors, self._manner))

    def _enqueue(self, call: PutCall, messages: Sequence[Message], start: int) -> int:
        """Hands messages to the client; returns how far it came before the client's queue was full.

        `produce` keeps the GIL, 4-5 us a message: nothing would be won by calling it elsewhere.
        """
        with self._swap:
            return self._hand_over(call, messages, start)

    def _hand_over(self, call: PutCall, messages: Sequence[Message], start: int) -> int:
        produce, take = self._producer.produce, call.take
        for place in range(start, len(messages)):
            message = messages[place]
            headers = message.headers
            listed = headers if type(headers) is list else list(headers)  # the client takes no other sequence
            try:
                produce(
                    message.topic, message.value, message.key, message.queue_id,
                    take, None, message.timestamp_ms or 0, listed,
                )  # fmt: skip
            except BufferError:
                return place
            except KafkaException as raised:
                call.give(place, _refused(error_of(raised)))
        return len(messages)

    async def _enqueue_slowly(self, call: PutCall, messages: Sequence[Message], start: int) -> None:
        """The client's queue is full: tries again for a while. A second queue would only hide it."""
        give_up_at = self._loop.time() + self._room_wait_s
        while start < len(messages) and self._loop.time() < give_up_at:
            await asyncio.sleep(_ROOM_STEP_S)
            if self._is_closing:
                break
            start = self._enqueue(call, messages, start)
        for place in range(start, len(messages)):
            call.give(place, _BUSY)
        self._end_calls([call])

    def _end_calls(self, calls: Sequence[PutCall]) -> None:
        for call in calls:
            try:
                self._end_call_if_over(call)
            except Exception:  # noqa: BLE001 - one call's reports must not keep the others from theirs
                _LOG.exception("put_reports_not_understood")
                call.answer([_UNREPORTED] * len(call.messages))

    def _end_call_if_over(self, call: PutCall) -> None:
        """Answers the caller."""
        if not call.is_over or call.is_ended:
            return
        call.is_ended = True
        self.waiting -= 1
        results = call.find_results()
        if call.again and self._manner is not Manner.ALONE:
            self._run_beside(self._put_again(call, results))
        else:
            call.answer(results)

    async def _put_again(self, call: PutCall, results: list[PutResult]) -> None:
        places, call.again = sorted(call.again), []
        tried = [CLOSED] * len(places)
        if not self._is_closing:
            if self._one_by_one is None:
                self._one_by_one = AppendClient(self._config, Manner.ALONE, make_producer=self._make_producer)
            tried = await self._one_by_one.put_many([call.messages[place] for place in places])
        for place, result in zip(places, tried, strict=True):
            results[place] = result
        call.answer(results)

    def _run_beside(self, rest: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(rest)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- in the polling thread ---

    def _run(self) -> None:
        while not self._is_closing:
            self._poll(POLL_S)
            self._wake()
            if (self.errors.fatal is not None and self._has_rested()) or self._is_deaf():
                self._renew()
        self._end(self._producer, _FLUSH_S)
        del self._producer  # its end waits for the client's threads: here, not in the loop

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except CLIENT_ERRORS as raised:
            self.errors.note(error_of(raised))

    def _wake(self) -> None:
        """One call into the loop for all that this poll has finished."""
        if not self._finished:
            return
        reach(FaultPoint.APPEND_REPORTED)
        calls = [self._finished.popleft() for _ in range(len(self._finished))]
        if calls[-1].is_written:
            for errors in self.cleared:
                errors.last_error = None
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so are the callers
            self._loop.call_soon_threadsafe(self._end_calls, calls)

    def _is_deaf(self) -> bool:
        """Whether something has been on its way for too long without any report."""
        if self._finished.has_heard or not len(self._producer):
            self._finished.has_heard = False
            self._silence.end()
            return False
        return self._silence.go_on()

    def _has_rested(self) -> bool:
        return self._silence.now() - self._renewed_at >= _RENEWAL_PAUSE_S

    def _renew(self) -> None:
        """A producer that is deaf or had a fatal error is of no use; what it still held has an unknown outcome, and
        is never sent by the next one."""
        _LOG.error("kafka_producer_renewed", reason=self.errors.last_error or "no answer")
        try:
            made = self._open()
        except CLIENT_ERRORS as raised:  # for want of threads or files; tried again at the next poll
            self.errors.note(error_of(raised))
            return
        self._renewed_at = self._silence.now()
        with self._swap:
            held, self._producer, self.errors.fatal = [self._producer], made, None
        self._end(held[0], 0)
        let_go(held.clear)

    def _end(self, producer: Producer, flush_s: float) -> None:
        """Every message it holds gets its report: written, or given up."""
        with contextlib.suppress(*CLIENT_ERRORS):
            producer.flush(flush_s)
        with contextlib.suppress(*CLIENT_ERRORS):
            producer.purge()
        give_up_at = time.monotonic() + _PURGE_S
        while len(producer) and time.monotonic() < give_up_at:
            with contextlib.suppress(*CLIENT_ERRORS):
                producer.poll(POLL_S)
        self._wake()


def _refused(error: KafkaError) -> PutResult:
    """The client did not take the message: certainly not written, whatever the reason."""
    failed = make_failed_put(error)
    return PutResult(PutStatus.REFUSED, refusal=failed.refusal or Refusal.STORE_BUSY, detail=failed.detail)


# --- one producer for calls of each kind ---

MANY = 20  # messages of one call for which fuller requests are worth a wait
BUSY = 16  # calls with fewer messages, all at once, for which they are worth one too


class AppendClients:
    """Plain puts of a process, by how its requests are to be filled. Opened by `open`, or by the first put: Kafka
    refuses a producer to whoever may write nothing."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._prompt: AppendClient | None = None
        self._opened: tuple[AppendClient, ...] = ()
        self._is_closed = False

    @property
    def errors(self) -> list[ClientErrors]:
        """What each client complains of."""
        return [each.errors for each in self._opened]

    def open(self) -> AppendClient:
        """Connects now, for whoever will put and wants no first put to wait for that."""
        if self._prompt is None:  # one that is made before another fails is kept for the next try
            for manner in (Manner.PROMPT, Manner.GATHERED, Manner.BULK)[len(self._opened) :]:
                self._opened += (AppendClient(self._config, manner),)
            self._prompt, self._gathered, self._bulk = self._opened
            for client in self._opened:
                client.cleared = self.errors
        return self._prompt

    def put_many(self, messages: Sequence[Message]) -> "asyncio.Future[list[PutResult]]":
        """See MessageStore."""
        if self._is_closed:
            refused = asyncio.get_running_loop().create_future()
            refused.set_result([CLOSED] * len(messages))
            return refused
        return self._choose(len(messages)).put_many(messages)

    def put_then(self, messages: Sequence[Message], give: Give) -> None:
        """See MessageStore."""
        if self._is_closed:
            give([CLOSED] * len(messages))
        else:
            self._choose(len(messages)).put_then(messages, give)

    async def close(self) -> None:
        """Waits a little for what is in flight; nothing is taken any more."""
        self._is_closed = True
        await asyncio.gather(*[each.close() for each in self._opened])

    def _choose(self, count: int) -> AppendClient:
        prompt = self._prompt or self.open()
        if count >= MANY:
            return self._bulk
        return self._gathered if prompt.waiting + self._gathered.waiting >= BUSY else prompt
