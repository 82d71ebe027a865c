"""The thread that owns a client."""

import asyncio
import threading

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.store.kafka.client import ClientThread


async def test_calls_run_in_order_in_one_thread() -> None:
    """One at a time, results in futures of the loop."""
    thread, seen = ClientThread("kafka-test"), list[tuple[int, int]]()
    futures = [thread.submit(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(5)]
    await asyncio.gather(*futures)
    await thread.close(lambda: None)
    assert [n for n, _ in seen] == [0, 1, 2, 3, 4]
    assert len({ident for _, ident in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_error_is_raised_where_the_result_is_awaited() -> None:
    """And the thread goes on."""
    thread = ClientThread("kafka-test")

    def fail() -> None:
        raise ValueError("planned")

    with pytest.raises(ValueError, match="planned"):
        await thread.submit(fail)
    assert await thread.submit(lambda: 7) == 7
    await thread.close(lambda: None)


async def test_closed_thread_takes_nothing() -> None:
    """Its last call runs once, the thread is gone, and closing again does nothing."""
    thread, ended = ClientThread("kafka-test"), list[int]()
    await thread.close(lambda: ended.append(1))
    await thread.close(lambda: ended.append(2))
    assert ended == [1]
    with pytest.raises(StoreUnavailable):
        thread.submit(lambda: None)
    assert "kafka-test" not in {running.name for running in threading.enumerate()}


async def test_hanging_thread_is_left_behind() -> None:
    """Closing does not wait for ever; the thread does not keep the process alive either."""
    thread, freed = ClientThread("kafka-test-hanging", close_timeout_s=0.01), threading.Event()
    hanging = thread.submit(freed.wait)
    await thread.close(lambda: None)
    (running,) = [running for running in threading.enumerate() if running.name == "kafka-test-hanging"]
    assert running.daemon
    freed.set()
    assert await hanging
    await asyncio.to_thread(running.join)
