"""Every row of the error table over a real socket."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.api_fakes import FakeTransactions, make_facts, make_services
from tests.support.bad_requests import BAD_REQUESTS, BadRequest, Facts
from tests.support.live_server import LiveServer, serve
from tests.support.problems import check_problem, named_places
from tests.support.raw_requests import RAW_REQUESTS

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def fake() -> FakeTransactions:
    """What stands behind the API, for all rows."""
    return FakeTransactions()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(fake: FakeTransactions) -> AsyncIterator[LiveServer]:
    """One server for all rows: none may break it for the next."""
    async with serve(make_services(fake)) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def facts(fake: FakeTransactions) -> Facts:
    """A prepared and a committed transaction."""
    return await make_facts(fake)


@pytest.mark.parametrize("row", BAD_REQUESTS, ids=lambda row: row.name)
async def test_bad_request_gets_its_problem(
    row: BadRequest, live: LiveServer, facts: Facts, fake: FakeTransactions
) -> None:
    """Status, code and place are those of the table, and nothing was done."""
    prepared, ended = len(fake.views), len(fake.ended)
    response = await live.client.request(
        row.method, row.fill_path(facts), content=row.fill_body(facts), headers=dict(row.headers)
    )
    problem = check_problem(response, row.status, row.code)
    assert problem["outcome"] == "not_applied"
    if row.pointer is not None:
        assert row.pointer in named_places(problem)
    assert row.has.items() <= {name.title(): value for name, value in response.headers.items()}.items()
    assert len(fake.views) == prepared
    assert [call for call in fake.ended[ended:] if row.status == 422] == []


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"), [row[1:] for row in RAW_REQUESTS], ids=[r[0] for r in RAW_REQUESTS]
)
async def test_what_is_no_request_gets_a_problem_and_is_closed(
    request_bytes: bytes, status: int, code: str, live: LiveServer
) -> None:
    """Even then the answer is a problem, and the connection ends."""
    answer = await live.send_raw(request_bytes)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"application/problem+json" in head
    assert b"connection: close" in head.lower()
    problem = json.loads(body)
    assert (problem["type"].rpartition("/")[2], problem["outcome"]) == (code, "not_applied")
