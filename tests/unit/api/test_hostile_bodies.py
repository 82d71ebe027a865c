"""Whatever bytes arrive: never a 500, never an undocumented status."""

import json
from functools import cache
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.web.app import create_app
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import UNKNOWN_ID
from tests.support.documented import Documented

APP = create_app(make_services(FakeTransactions()))
ROUTES = [
    ("POST", "/v1/transactions"),
    ("POST", "/v1/transactions/batch"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/resolutions"),
    ("POST", f"/v1/transactions/{UNKNOWN_ID}/commit"),
    ("POST", f"/v1/transactions/{UNKNOWN_ID}/force"),
    ("POST", f"/v1/transactions/{UNKNOWN_ID}/resume"),
    ("POST", f"/v1/transactions/{UNKNOWN_ID}/abandon"),
    ("POST", f"/v1/transactions/{UNKNOWN_ID}/check"),
    ("POST", "/v1/parked/redrive"),
    ("PUT", "/v1/producer-groups/g"),
    ("DELETE", "/v1/producer-groups/g"),
]
_NAMES = st.sampled_from(
    ["producer_group", "messages", "topic", "key", "value", "headers", "partition", "timestamp_ms", "transactions",
     "resolutions", "transaction_id", "resolution", "reason", "filter", "action", "check", "endpoints", "url", "nonce"]
)  # fmt: skip
_FILTERS = st.sampled_from(["state", "limit", "key", "topic", "born_after", "blocked", "producer_group"])
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=10)
    | st.sampled_from(["g", "t", UNKNOWN_ID, "COMMIT", "resume", "\x01", "YQ=="])
)
_SHAPES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(max_size=3), inner, max_size=5),
    max_leaves=15,
)
_BODIES = st.binary(max_size=200) | _SHAPES.map(lambda shape: json.dumps(shape).encode())


@cache
def documented() -> Documented:
    """Takes a second to make, which is nothing for those who only look for tests."""
    return Documented(APP.openapi())


def client() -> httpx2.AsyncClient:
    """A client of the application without a socket between."""
    transport = httpx2.ASGITransport(app=APP, raise_app_exceptions=True)
    return httpx2.AsyncClient(
        base_url="http://localhost", transport=transport, event_hooks={"response": [documented().check]}
    )


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{m} {p}" for m, p in ROUTES])
@settings(max_examples=40)
@given(body=_BODIES)
async def test_any_body_gets_a_documented_answer(method: str, path: str, body: bytes) -> None:
    """Nothing is above 499 here, whatever is sent."""
    async with client() as sender:
        answer = await sender.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500


@settings(max_examples=60)
@given(lines=st.lists(_BODIES, max_size=5))
async def test_any_lines_get_a_result_each(lines: list[bytes]) -> None:
    """200 for the stream, and nothing above 499 in it."""
    body = b"\n".join(lines)
    async with client() as sender:
        answer = await sender.post(
            "/v1/transactions/batch", content=body, headers={"Content-Type": "application/x-ndjson"}
        )
    results: list[Any] = [json.loads(line) for line in answer.content.splitlines()]
    expected = [line for line in body.split(b"\n") if line.rstrip(b"\r").strip(b" \t")]
    assert len(results) == len(expected)
    assert all(result["status"] < 500 for result in results)


@settings(max_examples=60)
@given(query=st.dictionaries(_FILTERS | st.text(max_size=3), st.text(max_size=12), max_size=3))
async def test_any_query_gets_a_documented_answer(query: dict[str, str]) -> None:
    """Filters are as strict as bodies."""
    async with client() as sender:
        answer = await sender.get("/v1/transactions", params=query)
    assert answer.status_code in {200, 422}
