"""Answers checks with the listener, within bounds: what finds no place, or takes too long, is left out.

No answer uses up nothing at the bridge: it asks again later, or another instance.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from outbox.client.listener import Check, HalfMessage, LocalTransactionState, Resolution, as_local_state, read_check

C = TypeVar("C", bound=Check)

MAX_CHECK_S = 60.0  # the longest exchange of a check that a group can have

_LOG = logging.getLogger(__name__)


class CheckPool:
    """On threads of its own, so that checks and sends do not hold each other up."""

    def __init__(self, check: Callable[[HalfMessage], object], threads: int, waiting: int) -> None:
        self._check = check
        self._threads = threads
        self._max_places = threads + waiting
        self._make()

    def answer(self, checks: Sequence[C], timeout_s: float) -> Generator[tuple[C, Resolution]]:
        """Answers as they become known, until the time is over."""
        self._renew_after_fork()
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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, check: Check) -> "Future[Resolution] | None":
        with self._lock:
            if self._places == 0:
                return None
            self._places -= 1
        try:
            future = self._pool.submit(self._decide, check)
        except RuntimeError:  # closed
            self._free(None)
            return None
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

    def _renew_after_fork(self) -> None:
        """Threads are not inherited."""
        if self._pid != os.getpid():
            self._make()


class AsyncCheckPool:
    """The same in the event loop; a check that is late is cancelled."""

    def __init__(self, check: Callable[[HalfMessage], Awaitable[object]], at_once: int, waiting: int) -> None:
        self._check = check
        self._places = at_once + waiting
        self._turns = asyncio.Semaphore(at_once)

    async def answer(self, checks: Sequence[C], timeout_s: float) -> AsyncGenerator[tuple[C, Resolution]]:
        """Answers as they become known, until the time is over."""
        taken = checks[: max(0, self._places)]
        self._places -= len(taken)
        asked = [asyncio.ensure_future(self._decide(check)) for check in taken]
        try:
            for done in asyncio.as_completed(asked, timeout=timeout_s):
                yield await done
        except TimeoutError:
            return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            self._places += len(taken)

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
