"""Large answers: made in steps between which everybody else is served."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from api.web.guard import MARK
from api.web.limits import HttpLimits
from api.web.request import Services
from bridge.core.check_rules import CheckCalls, CheckTimes, GroupSettings
from bridge.core.message import Message
from bridge.core.record import Act
from bridge.core.transaction import MessageSummary, TransactionState
from bridge.directory import Endpoint, ProducerGroup
from bridge.service.contract import PrepareCall, Prepared
from bridge.service.operate import Who
from bridge.turns import STEP_BYTES, each_in_steps
from tests.support.api_fakes import BORN_MS, FakeTransactions, make_services
from tests.support.bad_requests import JSON, NDJSON, UNKNOWN_ID
from tests.support.held_turns import HeldTurn
from tests.support.live_server import LiveServer, serve

ORDER = {"producer_group": "orders", "messages": [{"topic": "orders.created"}]}
RESOLUTION = {"transaction_id": UNKNOWN_ID, "resolution": "COMMIT"}
ENDPOINTS = [Endpoint(f"https://{n}.example/{'x' * 200}") for n in range(10)]
SETTINGS = GroupSettings(CheckTimes(), CheckCalls())


async def prepare_many(fake: FakeTransactions, count: int, messages: int) -> str:
    """So many transactions; the id of the first."""
    body = Message("orders.created", b"42", b"\xff" * 200)
    calls = [PrepareCall("orders", [body] * messages, idempotency_key=str(n)) for n in range(count)]
    answers = await fake.prepare(calls)
    first = answers[0]
    assert isinstance(first, Prepared)
    return first.transaction_id


async def many_parked(fake: FakeTransactions, _services: Services) -> str:
    """A page of parked transactions."""
    await prepare_many(fake, 500, 5)
    fake.views |= {name: replace(view, state=TransactionState.PARKED) for name, view in fake.views.items()}
    return "GET /v1/parked?limit=500"


async def many_transactions(fake: FakeTransactions, _services: Services) -> str:
    """A page of transactions, each with messages."""
    summary = MessageSummary("orders.created", b"42", 2, 0, None)
    await prepare_many(fake, 500, 1)
    fake.views |= {name: replace(view, messages=[summary] * 10) for name, view in fake.views.items()}
    return "GET /v1/transactions?limit=500"


async def many_messages(fake: FakeTransactions, _services: Services) -> str:
    """The messages of one transaction."""
    return f"GET /v1/transactions/{await prepare_many(fake, 1, 2_000)}?include=messages"


async def many_checks(fake: FakeTransactions, _services: Services) -> str:
    """Claimed checks, with their messages."""
    await prepare_many(fake, 900, 1)
    return "POST /v1/producer-groups/orders/checks/claim"


async def many_groups(_fake: FakeTransactions, services: Services) -> str:
    """A page of groups, each with endpoints."""
    groups: Any = services.groups
    groups.groups |= {
        f"g{n:03}": ProducerGroup(f"g{n:03}", SETTINGS, ENDPOINTS, created_ms=BORN_MS) for n in range(300)
    }
    return "GET /v1/producer-groups?limit=300"


async def many_acts(fake: FakeTransactions, _services: Services) -> str:
    """A page of the audit trail."""
    fake.acts += [(UNKNOWN_ID, Act.CHECK, Who("anonymous@127.0.0.1", "r" * 500))] * 500
    return "GET /v1/audit?limit=500"


async def many_ends(_fake: FakeTransactions, _services: Services) -> str:
    """Results of one document."""
    return "POST /v1/resolutions " + json.dumps({"resolutions": [RESOLUTION] * 700})


async def many_lines(_fake: FakeTransactions, _services: Services) -> str:
    """Results of lines that come together."""
    return "POST /v1/transactions/batch " + "\n".join([json.dumps(ORDER)] * 900)


ANSWERS = [
    many_parked, many_transactions, many_messages, many_checks, many_groups, many_acts, many_ends, many_lines
]  # fmt: skip


@pytest.mark.parametrize("arrange", ANSWERS)
async def test_others_are_served_while_a_large_answer_is_made(
    arrange: Callable[[FakeTransactions, Services], Any], fake: FakeTransactions
) -> None:
    """A turn for each step of it, and who asks at the first of them is answered before it."""
    services = make_services(fake)
    asked = await arrange(fake, services)
    async with serve(services) as live:
        turn = HeldTurn(services.turns)
        large = asyncio.ensure_future(ask(live, asked))
        await turn.begin(large)
        assert (await live.client.get(f"/v1/transactions/{UNKNOWN_ID}")).status_code == 404
        assert not large.done()
        turn.is_over.set()
        answer = await large
    assert answer.status_code == 200, answer.text[:500]
    assert services.turns.taken >= len(answer.content) // (2 * STEP_BYTES) >= 1


async def test_answers_that_nobody_reads_are_bounded(fake: FakeTransactions) -> None:
    """Each is in memory until it has been read, and who may read one transaction can ask for it on any number of
    connections."""
    services = make_services(fake, limits=HttpLimits(in_flight_bytes=64 * 1024 * 1024))
    body = Message("orders.created", b"42", b"x" * 1_000_000)
    (prepared,) = await fake.prepare([PrepareCall("orders", [body] * 11)])
    assert isinstance(prepared, Prepared)
    target = f"/v1/transactions/{prepared.transaction_id}?include=messages"
    begun: list[bytes] = []
    async with serve(services) as live:
        head = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\n{MARK}: 1\r\n\r\n".encode()
        connections = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", live.port, limit=1_024, ssl=live.tls)
            connections.append(writer)
            writer.write(head)
            begun.append(await reader.readuntil(b"\r\n"))
        assert [line.split()[1] for line in begun] == [b"200"] * 4 + [b"503"] * 2
        for writer in connections:
            writer.transport.abort()
        answers = [await live.client.get(target) for _ in range(20)]  # their places and bytes are free again
        assert answers[-1].status_code == 200


def test_small_answers_take_no_turn() -> None:
    """What is made at once is not delayed."""
    assert [*each_in_steps([b"x" * 100] * 100, bytes)] == []


async def ask(live: LiveServer, asked: str) -> httpx2.Response:
    """The answer to "METHOD target body"."""
    method, target, *rest = asked.split(" ", 2)
    body = rest[0] if rest else None
    headers = NDJSON if body is not None and "\n" in body else JSON
    if method == "GET":
        return await live.client.get(target)
    return await live.client.request(method, target, content=body or '{"limit":1000}', headers=headers)
