"""An admin client asked with time-outs, its errors translated. Its futures come from its own thread."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bridge.core.errors import StoreTimeout, StoreUnavailable
from bridge.futures import take_error
from bridge.store.kafka.errors import error_of, make_store_error
from bridge.store.kafka.options import ClientErrors, KafkaConfig, admin_options

T = TypeVar("T")

_GRACE_S = 1.0  # the client ends its requests itself; this is for a client that does not


class Asker:
    """Requests get the client and their time-out in seconds."""

    def __init__(self, config: KafkaConfig) -> None:
        self.errors = ClientErrors()
        self._timeout_s = config.read_timeout_ms / 1000
        self._client: AdminClient | None = AdminClient(admin_options(config, self.errors))
        self._unanswered: set[Future[Any]] = set()

    async def ask(self, request: Callable[[AdminClient, float], "Future[T]"]) -> T:
        """The answer. Raises StoreTimeout, StoreUnavailable."""
        answers = await self.ask_each(lambda client, timeout_s: {None: request(client, timeout_s)})
        answer = answers[None]
        if isinstance(answer, KafkaException):
            raise make_store_error(error_of(answer)) from answer
        return answer

    async def ask_each(
        self, request: Callable[[AdminClient, float], Mapping[str | None, "Future[T]"]]
    ) -> dict[str | None, T | KafkaException]:
        """The answer of each name, or the error. Raises StoreTimeout, StoreUnavailable."""
        client = self._get_client()
        answers: dict[str | None, T | KafkaException] = {}
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                asked = request(client, self._timeout_s)
                self._note(asked.values())
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
            raise StoreTimeout("no answer from the admin client") from None
        finally:
            client.poll(0)  # its log and its errors wait for this
        self.errors.clear()
        return answers

    async def run(self, call: Callable[[AdminClient, float], T]) -> T:
        """A call that blocks, off the loop. Raises StoreTimeout, StoreUnavailable."""
        client = self._get_client()
        try:
            return await asyncio.to_thread(call, client, self._timeout_s)
        except KafkaException as raised:
            raise make_store_error(error_of(raised)) from raised

    async def close(self) -> None:
        """Lets the client go, once it has all its answers or has given up on them: one that comes while it ends
        aborts the process. Its end waits for its threads, so it is not awaited in the loop's."""
        held, self._client = [self._client], None
        if self._unanswered:
            await asyncio.to_thread(wait, set(self._unanswered), self._timeout_s + _GRACE_S)
        await asyncio.to_thread(held.clear)

    def _note(self, futures: Iterable["Future[Any]"]) -> None:
        """Whoever asked may be cancelled before the answer comes."""
        for future in futures:
            self._unanswered.add(future)
            future.add_done_callback(self._unanswered.discard)

    def _get_client(self) -> AdminClient:
        if self._client is None:
            raise StoreUnavailable("the store is closed")
        return self._client
