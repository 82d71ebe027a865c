"""Checks that a group fetches, over HTTP."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.clock import SystemClock
from bridge.core.grants import Grant, Verb
from bridge.core.message import Message
from bridge.core.transaction import show_time
from bridge.service.access import AccessConfig, AccessService
from bridge.service.contract import PrepareCall
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import open_new_database
from tests.support.api_fakes import BORN_MS, FakeClaims, FakeTransactions, make_services
from tests.support.live_server import LiveServer, serve
from tests.support.problems import check_problem, named_places

PATH = "/v1/producer-groups/orders/checks/claim"


async def test_checks_are_shown_as_a_call_sends_them(live: LiveServer, fake: FakeTransactions) -> None:
    """The same members, every value without loss; each nonce is another. Born is when the message was stored, whatever
    the clock of the api process said."""
    await fake.prepare([PrepareCall("orders", [Message("orders.created", b"k", b"\xff")]) for _ in range(2)])
    fake.views = {name: msgspec.structs.replace(view, born_ms=0) for name, view in fake.views.items()}
    answer = await live.client.post(PATH, json={})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    shown = answer.json()
    assert (shown["type"], shown["producer_group"], len(shown["checks"])) == ("transaction.check", "orders", 2)
    assert shown["checks"][0]["messages"] == [
        {"topic": "orders.created", "key": "k", "value_base64": "/w==", "headers": []}
    ]
    assert len({check["nonce"] for check in shown["checks"]}) == 2
    assert {check["born_time"] for check in shown["checks"]} == {show_time(BORN_MS)}
    assert (await live.client.post(PATH)).json()["checks"] == []


async def test_bounds_have_defaults_and_are_passed_on(fake: FakeTransactions) -> None:
    """As the contract says; fractions of seconds are taken."""
    claims = FakeClaims(fake)
    async with serve(make_services(fake, claims=claims)) as live:
        await live.client.post(PATH)
        await live.client.post(PATH, json={"limit": 7, "wait_seconds": 0.5, "lease_seconds": 1.5})
    assert [call[:4] for call in claims.calls] == [("orders", 100, 30_000, 60_000), ("orders", 7, 500, 1_500)]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"limit": 0}, "/limit"),
        ({"limit": 1_001}, "/limit"),
        ({"limit": 1.5}, "/limit"),
        ({"wait_seconds": -1}, "/wait_seconds"),
        ({"wait_seconds": 61}, "/wait_seconds"),
        ({"lease_seconds": 0}, "/lease_seconds"),
        ({"lease_seconds": 3_601}, "/lease_seconds"),
        ({"wait": 1}, "/wait"),
    ],
)
async def test_malformed_claims_are_refused(body: Any, place: str, live: LiveServer) -> None:
    """422 with the place."""
    assert named_places(check_problem(await live.client.post(PATH, json=body), 422, "invalid-request")) == {place}


async def test_group_that_is_called_claims_nothing(live: LiveServer) -> None:
    """409: its checks go to its endpoints."""
    other = PATH.replace("orders", "bank")
    check_problem(await live.client.post(other), 409, "not-pull-mode")


async def test_claim_of_a_caller_that_hangs_up_is_given_up(fake: FakeTransactions) -> None:
    """What would be leased to nobody stays free."""
    claims = FakeClaims(fake, waits=True)
    async with serve(make_services(fake, claims=claims)) as live:
        _, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n".encode()
        )
        await writer.drain()
        await asyncio.wait_for(claims.came.wait(), 10)
        assert not claims.given_up.is_set()
        writer.close()
        await asyncio.wait_for(claims.given_up.wait(), 10)


@pytest.mark.parametrize("is_revoked", [True, False], ids=["key revoked", "grants taken"])
async def test_claim_of_a_caller_who_may_no_more_is_given_up(
    is_revoked: bool, fake: FakeTransactions, tmp_path: Path
) -> None:
    """It waits for up to a minute: what came due after that is not shown to him."""
    access = AccessService(open_new_database(tmp_path), SystemClock(), AccessConfig(is_open=False))
    who = Who("ops", "")
    await access.put("shop", [Grant(Verb.CHECK, "orders")], who)
    made = await access.make_key("shop", None, None, who)
    assert isinstance(made, MadeKey)
    claims = FakeClaims(fake, waits=True)
    async with serve(replace(make_services(fake, claims=claims), access=access)) as live:
        headers = {"Authorization": f"Bearer {made.text}"}
        waiting = asyncio.ensure_future(live.client.post(PATH, headers=headers))
        await asyncio.wait_for(claims.came.wait(), 10)
        await asyncio.sleep(0.05)
        assert not claims.given_up.is_set()
        await (access.revoke(made.key.key_id, who) if is_revoked else access.put("shop", [], who))
        await asyncio.wait_for(claims.given_up.wait(), 10)
        assert (await waiting).json()["checks"] == []
        refused = await live.client.post(PATH, headers=headers)
        check_problem(refused, *((401, "unauthenticated") if is_revoked else (403, "forbidden")))


async def test_draining_ends_waiting_claims(fake: FakeTransactions) -> None:
    """SIGTERM: who waits is answered with nothing, at once, instead of being cut off (80)."""
    claims = FakeClaims(fake, waits=True)
    async with serve(make_services(fake, claims=claims)) as live:
        waiting = asyncio.ensure_future(live.client.post(PATH))
        await asyncio.wait_for(claims.came.wait(), 10)
        live.stop.set()
        answer = await waiting
    assert (answer.status_code, answer.json()["checks"]) == (200, [])
