"""RocketMQ's TransactionProducer, for threads and for event loops. Source: DefaultMQProducerImpl."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import aclosing, closing
from typing import Any, TypeAlias, TypeVar, Unpack

from outbox.client.block import RecordWriter, end_or_leave, prepare_or_fail, result_of
from outbox.client.bridge import AsyncBridge, Bridge
from outbox.client.caller import BridgeClient, CallTime
from outbox.client.calls import PrepareOptions
from outbox.client.config import BridgeConfig
from outbox.client.connection import submit_or_run
from outbox.client.errors import Misuse
from outbox.client.listener import (
    AsyncTransactionListener,
    Check,
    CheckAnswer,
    HalfMessage,
    LocalTransactionState,
    Resolution,
    TransactionListener,
    TransactionSendResult,
    as_local_state,
    read_check,
)
from outbox.client.message import Message

# --- answers checks with the listener, within bounds: what finds no place, or takes too long, is left out ---
# No answer uses up nothing at the bridge: it asks again later, or another instance.

C = TypeVar("C", bound=Check)

MAX_CHECK_S = 60.0  # the longest exchange of a check that a group can have

# --- the producer ---

_LOG = logging.getLogger(__name__)


class CheckPool:
    """On threads of its own, so that checks and sends do not hold each other up."""

    def __init__(self, check: Callable[[HalfMessage], object], threads: int, waiting: int) -> None:
        self._check = check
        self._threads = threads
        self._max_places = threads + waiting
        self._is_closed = False
        self._make()

    def answer(self, checks: Sequence[C], timeout_s: float) -> Generator[tuple[C, Resolution]]:
        """Answers as they become known, until the time is over."""
        # threads are not inherited
        if self._pid != os.getpid():
            self._make()
        deadline_s = time.monotonic() + timeout_s
        asked = {future: check for check in checks if (future := self._submit(check)) is not None}
        try:
            for future in as_completed(asked, max(0.0, deadline_s - time.monotonic())):
                yield asked[future], future.result()
        except FutureTimeout:
            return
        finally:
            for future in asked:
                future.cancel()

    def close(self) -> None:
        """Takes no more; a check that still runs is not waited for."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, check: Check) -> "Future[Resolution] | None":
        with self._lock:
            if self._places == 0 or self._is_closed:
                return None
            self._places -= 1
        future = submit_or_run(self._pool, self._decide, check)
        future.add_done_callback(self._free)
        return future

    def _decide(self, check: Check) -> Resolution:
        try:
            return read_resolution(check, self._check(read_check(check)))
        except Exception as error:  # noqa: BLE001 - the user's code; RocketMQ takes any exception for UNKNOW
            return _note_failure(check, error)

    def _free(self, _: object) -> None:
        with self._lock:
            self._places += 1

    def _make(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._places = self._max_places
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="outbox-check")


class AsyncCheckPool:
    """The same in the event loop; a check that is late is cancelled, and keeps its place until it has ended."""

    def __init__(self, check: Callable[[HalfMessage], Awaitable[object]], at_once: int, waiting: int) -> None:
        self._check = check
        self._max_places = at_once + waiting
        self._running: set[asyncio.Task[Any]] = set()
        self._turns = asyncio.Semaphore(at_once)

    async def answer(self, checks: Sequence[C], timeout_s: float) -> AsyncGenerator[tuple[C, Resolution]]:
        """Answers as they become known, until the time is over."""
        taken = checks[: max(0, self._max_places - len(self._running))]
        asked = [asyncio.create_task(self._decide(check)) for check in taken]
        self._running.update(asked)
        for task in asked:
            task.add_done_callback(self._running.discard)
        try:
            for done in asyncio.as_completed(asked, timeout=timeout_s):
                yield await done
        except TimeoutError:
            return
        finally:
            for task in asked:
                task.cancel()

    async def _decide(self, check: C) -> tuple[C, Resolution]:
        async with self._turns:
            try:
                return check, read_resolution(check, await self._check(read_check(check)))
            except Exception as error:  # noqa: BLE001 - the user's code; RocketMQ takes any exception for UNKNOW
                return check, _note_failure(check, error)


def read_resolution(check: Check, answer: object) -> Resolution:
    """What a listener returned."""
    local = as_local_state(answer)
    if local is not answer:
        _LOG.warning("check of transaction %s: returned %s", check.transaction_id, type(answer).__name__)
    return local.resolution


def _note_failure(check: Check, error: Exception) -> Resolution:
    _LOG.warning("check of transaction %s raised %s", check.transaction_id, type(error).__name__)
    return LocalTransactionState.UNKNOWN.resolution


Execute: TypeAlias = Callable[[HalfMessage, object], Awaitable[object]]


async def send_in_transaction(
    verbs: BridgeClient, execute: Execute, messages: Message | Sequence[Message], arg: object, options: PrepareOptions
) -> TransactionSendResult:
    """The local transaction runs only once the half message is stored; its end is reported, whatever it does.

    Raises OutboxError if it did not run.
    """
    time = CallTime(verbs.config.block_timeout_s)
    half, prepared = await prepare_or_fail(verbs, messages, options, time)
    local, error = LocalTransactionState.UNKNOWN, None
    try:
        local = _read_local(half, await execute(half, arg))
    except Exception as raised:  # noqa: BLE001 - the user's code; RocketMQ takes any exception for UNKNOW
        error = raised
        _LOG.warning("transaction %s: local transaction raised %s", half.transaction_id, type(raised).__name__)
    remark = None if error is None else f"{type(error).__name__}: {error}"  # as RocketMQ's producer sends it
    told = await end_or_leave(verbs, half, local.resolution, time, remark=remark)
    return result_of(half, prepared, local, told, error)


def _read_local(half: HalfMessage, answer: object) -> LocalTransactionState:
    local = as_local_state(answer)
    if local is not answer:
        _LOG.warning("transaction %s: the listener returned %s", half.transaction_id, type(answer).__name__)
    return local


class TransactionProducer(Bridge):
    """Sends messages with local transactions that a listener runs, and answers checks with it."""

    def __init__(
        self,
        producer_group: str,
        listener: TransactionListener,
        url: str,
        *,
        config: BridgeConfig | None = None,
        record: RecordWriter | None = None,
    ) -> None:
        super().__init__(url, producer_group, config=config, record=record)
        if not isinstance(listener, TransactionListener):
            raise Misuse("the listener must be a TransactionListener")
        self._listener = listener
        self._checks = CheckPool(
            listener.check_local_transaction, self.config.check_threads, self.config.max_waiting_checks
        )

    def send_message_in_transaction(
        self, message: Message | Sequence[Message], arg: object = None, **options: Unpack[PrepareOptions]
    ) -> TransactionSendResult:
        """Stores the half message, runs the local transaction in this thread, ends the transaction.

        Raises OutboxError if the local transaction did not run. What the listener raises is UNKNOWN, and in the result.
        """
        return self._run(send_in_transaction(self._verbs, self._execute, message, arg, options))

    def answer_checks(self, checks: Sequence[Check], timeout_s: float) -> list[CheckAnswer]:
        """What the listener knows within the time; checks that found no place or took too long are left out."""
        with closing(self._checks.answer(checks, timeout_s)) as answered:
            return [CheckAnswer(check.transaction_id, check.nonce, resolution) for check, resolution in answered]

    def answer(self, checks: Sequence[C], tell: Callable[[C, Resolution], None]) -> None:
        """The same for a CheckHandler: sends each answer as soon as it is known."""
        with closing(self._checks.answer(checks, MAX_CHECK_S)) as answered:
            for check, resolution in answered:
                tell(check, resolution)

    def close(self) -> None:
        """As Bridge; checks that still run are not waited for."""
        self._checks.close()
        super().close()

    async def _execute(self, half: HalfMessage, arg: object) -> object:
        return self._listener.execute_local_transaction(half, arg)


class AsyncTransactionProducer(AsyncBridge):
    """Sends messages with local transactions that a listener runs, and answers checks with it."""

    def __init__(
        self,
        producer_group: str,
        listener: AsyncTransactionListener,
        url: str,
        *,
        config: BridgeConfig | None = None,
        record: RecordWriter | None = None,
    ) -> None:
        super().__init__(url, producer_group, config=config, record=record)
        if not isinstance(listener, AsyncTransactionListener):
            raise Misuse("the listener must be an AsyncTransactionListener")
        self._listener = listener
        self._checks = AsyncCheckPool(
            listener.check_local_transaction, self.config.check_threads, self.config.max_waiting_checks
        )

    async def send_message_in_transaction(
        self, message: Message | Sequence[Message], arg: object = None, **options: Unpack[PrepareOptions]
    ) -> TransactionSendResult:
        """Stores the half message, runs the local transaction, ends the transaction.

        Raises OutboxError if the local transaction did not run. What the listener raises is UNKNOWN, and in the result.
        """
        return await self._run(send_in_transaction(self._verbs, self._execute, message, arg, options))

    async def answer_checks(self, checks: Sequence[Check], timeout_s: float) -> list[CheckAnswer]:
        """What the listener knows within the time; checks that found no place or took too long are left out."""
        async with aclosing(self._checks.answer(checks, timeout_s)) as answered:
            return [CheckAnswer(check.transaction_id, check.nonce, resolution) async for check, resolution in answered]

    async def answer(self, checks: Sequence[C], tell: Callable[[C, Resolution], None]) -> None:
        """The same for an AsyncCheckHandler: sends each answer as soon as it is known."""
        async with aclosing(self._checks.answer(checks, MAX_CHECK_S)) as answered:
            async for check, resolution in answered:
                tell(check, resolution)

    async def _execute(self, half: HalfMessage, arg: object) -> object:
        return await self._listener.execute_local_transaction(half, arg)
