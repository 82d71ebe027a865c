"""An admin client asked with time-outs, its errors translated. Its futures come from its own thread."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import structlog
from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka.admin import AdminClient

from bridge.core.errors import StoreTimeout, StoreUnavailable
from bridge.futures import take_error
from bridge.store.kafka.errors import SILENCE, error_of, make_store_error
from bridge.store.kafka.options import ClientErrors, KafkaConfig, admin_options
from bridge.store.kafka.silence import Silence

T = TypeVar("T")
_LOG = structlog.get_logger()

_GRACE_S = 1.0  # the client ends its requests itself; this is for a client that does not


class _Opened:
    """A client, held here alone, and what it has not answered yet."""

    def __init__(self, config: KafkaConfig, errors: ClientErrors) -> None:
        self.client: AdminClient | None = AdminClient(admin_options(config, errors))
        self.unanswered: set[Future[Any]] = set()

    def note(self, futures: Iterable["Future[Any]"]) -> None:
        """Whoever asked may be cancelled before the answer comes."""
        for future in futures:
            self.unanswered.add(future)
            future.add_done_callback(self.unanswered.discard)

    def poll(self) -> None:
        """Its log and its errors wait for this."""
        if self.client is not None:
            self.client.poll(0)

    def end(self, timeout_s: float) -> None:
        """Lets the client go, once it has all its answers or has given up on them: one that comes while it ends
        aborts the process. Its end waits for its threads: not to be called in the loop's."""
        wait(set(self.unanswered), timeout_s)
        self.client = None


class Asker:
    """Requests get the client and their time-out in seconds.

    A client that nobody has answered for too long is replaced; `generation` counts them.
    """

    def __init__(self, config: KafkaConfig, silence: Silence | None = None) -> None:
        self.errors = ClientErrors()
        self.generation = 0
        self._silence = silence or Silence()
        self._config = config
        self._timeout_s = config.read_timeout_ms / 1000
        self._opened: _Opened | None = _Opened(config, self.errors)
        self._ending: set[asyncio.Task[None]] = set()

    async def ask(self, request: Callable[[AdminClient, float], "Future[T]"]) -> T:
        """The answer. Raises StoreTimeout, StoreUnavailable."""
        answers = await self.ask_each(lambda client, timeout_s: {None: request(client, timeout_s)})
        answer = answers[None]
        if isinstance(answer, KafkaException):
            raise make_store_error(error_of(answer)) from answer
        return answer

    async def ask_each(
        self, request: Callable[[AdminClient, float], Mapping[str | None, "Future[T]"]], about: Hashable = None
    ) -> dict[str | None, T | KafkaException]:
        """The answer of each name, or the error. Raises StoreTimeout, StoreUnavailable."""
        opened, began = self._get_opened(), self._silence.now()
        answers: dict[str | None, T | KafkaException] = {}
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                asked = request(_client_of(opened), self._timeout_s)
                opened.note(asked.values())
                for name, future in asked.items():
                    waiting: asyncio.Future[T] = asyncio.wrap_future(future)
                    waiting.add_done_callback(take_error)
                    try:
                        answers[name] = await asyncio.shield(waiting)
                    except KafkaException as raised:
                        answers[name] = raised
        except KafkaException as raised:
            raise make_store_error(error_of(raised)) from raised
        except TimeoutError:
            self._hear_nothing(opened, about, began)
            raise StoreTimeout("no answer from the admin client") from None
        finally:
            opened.poll()
        if any(map(_is_silent, answers.values())):
            self._hear_nothing(opened, about, began)
        else:
            self._silence.end(about)
            self.errors.clear()
        return answers

    async def run(self, call: Callable[[AdminClient, float], T]) -> T:
        """A call that blocks, off the loop. Raises StoreTimeout, StoreUnavailable."""
        opened, began = self._get_opened(), self._silence.now()
        try:
            answer = await asyncio.to_thread(lambda: call(_client_of(opened), self._timeout_s))
        except KafkaException as raised:
            if _is_silent(raised):
                self._hear_nothing(opened, None, began)
            raise make_store_error(error_of(raised)) from raised
        self._silence.end()
        return answer

    async def close(self) -> None:
        """Lets all clients go."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._end(opened)
        if self._ending:
            await asyncio.wait(self._ending)

    def _hear_nothing(self, opened: _Opened, about: Hashable, began: float) -> None:
        if self._opened is not opened or not self._silence.go_on(about, began):
            return
        _LOG.error("kafka_admin_client_renewed", reason=self.errors.last_error or "no answer")
        self._opened = _Opened(self._config, self.errors)
        self.generation += 1
        self._end(opened)

    def _end(self, opened: _Opened) -> None:
        ending = asyncio.create_task(asyncio.to_thread(opened.end, self._timeout_s + _GRACE_S))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _get_opened(self) -> _Opened:
        if self._opened is None:
            raise StoreUnavailable("the store is closed")
        return self._opened


def _client_of(opened: _Opened) -> AdminClient:
    if opened.client is None:
        raise StoreTimeout("the admin client was replaced")
    return opened.client


def _is_silent(answer: object) -> bool:
    """A question for offsets that nobody has answered in time comes back as a success, without an offset."""
    if isinstance(answer, KafkaException):
        return error_of(answer).code() in SILENCE
    return getattr(answer, "offset", None) == OFFSET_INVALID
