"""An endpoint that is known while its instance lives."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from outbox import AsyncBridge, Bridge, CheckEndpointRefused, OutboxConfigError
from outbox.client.check_source import LeaseKeeper
from outbox.client.errors import Problem, Unavailable, refusal_of
from tests.support.bridge_process import wait_until
from tests.support.canned_http import CannedServer, canned_server

PATH = "/v1/producer-groups/shop/endpoints"
URL = "https://shop.example/check"
FORBIDDEN = refusal_of(Problem("callback-url-forbidden", 422))


@pytest.fixture
def bridge() -> Iterator[CannedServer]:
    """Takes every endpoint."""
    with canned_server() as server:
        server.answer("POST", PATH, 200, {"url": URL})
        server.answer("DELETE", PATH, 200, {})
        yield server


class Asking:
    """Answers as planned, then well; `calls`: method and time-out of each."""

    def __init__(self, *planned: Exception) -> None:
        self.planned = list(planned)
        self.calls: list[tuple[str, float | None]] = []

    async def __call__(self, call: Any, timeout_s: float | None = None) -> Any:
        self.calls.append((call.method, timeout_s))
        if self.planned:
            raise self.planned.pop(0)


async def test_lease_is_renewed_at_a_third_of_its_time() -> None:
    """Two renewals may fail before it runs out."""
    keeper, asking = LeaseKeeper("shop", URL, 60), Asking()
    assert await keeper.run_once(asking) == 20
    assert keeper.is_registered
    assert asking.calls == [("POST", 20)]


async def test_lost_bridge_is_asked_again_soon_and_ever_later() -> None:
    """Never later than a renewal; a success starts anew."""
    keeper, asking = LeaseKeeper("shop", URL, 6), Asking(*[Unavailable("away")] * 4)
    assert [await keeper.run_once(asking) for _ in range(6)] == [0.5, 1, 2, 2, 2, 2]
    asking.planned = [Unavailable("away")]
    assert await keeper.run_once(asking) == 0.5


async def test_endpoint_that_does_not_listen_yet_is_offered_again() -> None:
    """A service registers while it starts: the bridge's challenge finds nobody, a moment later it is answered."""
    unproven = refusal_of(Problem("callback-unverified", 422))
    keeper, asking = LeaseKeeper("shop", URL, 60), Asking(unproven, unproven)
    assert [await keeper.run_once(asking) for _ in range(3)] == [0.5, 1, 20]
    assert keeper.is_registered


async def test_refusal_is_told() -> None:
    """The URL will not become better."""
    with pytest.raises(CheckEndpointRefused):
        await LeaseKeeper("shop", URL, 60).run_once(Asking(FORBIDDEN))


async def test_group_that_nobody_has_used_yet_is_waited_for() -> None:
    """Its first prepare makes it; an instance must be able to start before that."""
    keeper = LeaseKeeper("shop", URL, 60)
    assert await keeper.run_once(Asking(refusal_of(Problem("unknown-producer-group", 404)))) == 0.5
    assert not keeper.is_registered


async def test_leaving_never_fails() -> None:
    """The lease runs out by itself."""
    await LeaseKeeper("shop", URL, 60).leave(Asking(Unavailable("away")))


@pytest.mark.parametrize("seconds", [0, -1, True, 1.5, 100_000])
def test_impossible_lease_is_refused(seconds: Any) -> None:
    """When it is made."""
    with pytest.raises(OutboxConfigError):
        LeaseKeeper("shop", URL, seconds)


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "awaited"])
async def test_endpoint_comes_and_goes_with_its_instance(bridge: CannedServer, is_async: bool) -> None:
    """Registered, renewed, taken away at the end."""
    if is_async:
        async with AsyncBridge(bridge.url, "shop") as face, face.endpoint_lease(URL, lease_seconds=1) as lease:
            assert lease.is_registered
            await asyncio.to_thread(wait_until, lambda: len(bridge.asked) >= 3)
    else:
        with Bridge(bridge.url, "shop") as face, face.endpoint_lease(URL, lease_seconds=1) as lease:
            assert lease.is_registered
            await asyncio.to_thread(wait_until, lambda: len(bridge.asked) >= 3)
    assert {asked.method for asked in bridge.asked[:-1]} == {"POST"}
    assert (bridge.asked[-1].method, bridge.asked[-1].query) == ("DELETE", {"url": URL})
    assert bridge.asked[0].document == {"url": URL, "lease_seconds": 1}


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "awaited"])
async def test_closing_the_bridge_takes_the_endpoint_away(bridge: CannedServer, is_async: bool) -> None:
    """A lease that was started and forgotten."""
    if is_async:
        async with AsyncBridge(bridge.url, "shop") as face:
            await face.endpoint_lease(URL).start()
    else:
        with Bridge(bridge.url, "shop") as face:
            await asyncio.to_thread(face.endpoint_lease(URL).start)
    assert [asked.method for asked in bridge.asked] == ["POST", "DELETE"]


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "awaited"])
async def test_one_of_several_at_an_endpoint_leaves_it_to_the_others(bridge: CannedServer, is_async: bool) -> None:
    """The first worker that ended took it from all others, until one of them renewed it."""
    if is_async:
        async with AsyncBridge(bridge.url, "shop") as face, face.endpoint_lease(URL, is_shared=True) as lease:
            assert lease.is_registered
    else:
        with Bridge(bridge.url, "shop") as face, face.endpoint_lease(URL, is_shared=True) as shared:
            assert shared.is_registered
    assert [asked.method for asked in bridge.asked] == ["POST"]
