"""What every CheckCaller promises: endpoints as functions, and as real HTTP servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from bridge.clock import SystemClock
from checker.call import FIRST_BYTES, CheckCaller, EndpointCall, Failure
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller
from tests.support.check_fakes import MemoryCaller, Response

Serve = Callable[[Callable[[EndpointCall], Awaitable[Response]]], Awaitable[str]]


class MemoryEndpoints:
    """Endpoints that are functions."""

    def __init__(self) -> None:
        self.caller: CheckCaller = MemoryCaller(SystemClock())

    async def serve(self, handler: Callable[[EndpointCall], Awaitable[Response]]) -> str:
        assert isinstance(self.caller, MemoryCaller)
        self.caller.endpoints["https://shop.example/check?token=t"] = handler
        return "https://shop.example/check?token=t"

    async def close(self) -> None:
        await self.caller.close()


class HttpEndpoints:
    """Endpoints that are HTTP servers on this machine."""

    def __init__(self) -> None:
        self.caller: CheckCaller = HttpCaller(CallbackPolicy(parse_networks(["127.0.0.0/8"])), SystemClock())
        self._runners: list[web.AppRunner] = []

    async def serve(self, handler: Callable[[EndpointCall], Awaitable[Response]]) -> str:
        async def answer(request: web.Request) -> web.Response:
            body = await request.read()
            response = await handler(EndpointCall(str(request.url), dict(request.headers), body, 0, 0))
            headers = {"Retry-After": response.retry_after} if response.retry_after else {}
            headers |= {"Content-Encoding": "gzip"} if response.is_compressed else {}
            return web.Response(status=response.status, body=response.body, headers=headers)

        app = web.Application()
        app.router.add_post("/check", answer)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/check?token=t"

    async def close(self) -> None:
        await self.caller.close()
        for runner in self._runners:
            await runner.cleanup()


Endpoints = MemoryEndpoints | HttpEndpoints


@pytest.fixture(params=[MemoryEndpoints, HttpEndpoints])
async def endpoints(request: pytest.FixtureRequest) -> AsyncIterator[Endpoints]:
    """An adapter under test, with endpoints it can reach."""
    opened: Endpoints = request.param()
    yield opened
    await opened.close()


def make_call(url: str, *, timeout_ms: int = 10_000, most: int = 1_000) -> EndpointCall:
    return EndpointCall(url, {"webhook-id": "check_1"}, b'{"checks":[]}', timeout_ms, most)


def sending(response: Response) -> Callable[[EndpointCall], Awaitable[Response]]:
    async def handler(call: EndpointCall) -> Response:
        return response

    return handler


async def test_body_and_headers_go_there_and_the_answer_comes_back(endpoints: Endpoints) -> None:
    """Bytes as they are; the endpoint is named without its query."""
    seen: list[EndpointCall] = []

    async def handler(call: EndpointCall) -> Response:
        seen.append(call)
        return Response(200, b'{"resolutions":[]}\n')

    url = await endpoints.serve(handler)
    reply = await endpoints.caller.call(make_call(url))
    assert (reply.status, reply.body, reply.failure) == (200, b'{"resolutions":[]}\n', None)
    assert reply.endpoint == url.removesuffix("?token=t")
    assert (seen[0].body, seen[0].headers["webhook-id"]) == (b'{"checks":[]}', "check_1")


@pytest.mark.parametrize(
    ("status", "failure", "first"),
    [
        (201, "status", b""),
        (301, "redirect", b""),
        (307, "redirect", b""),
        (400, "status", b""),
        (401, "status", b"x" * FIRST_BYTES),
        (404, "status", b"x" * FIRST_BYTES),
        (410, "gone", b""),
        (422, "status", b""),
        (500, "status", b""),
    ],
)
async def test_other_statuses_are_failures(endpoints: Endpoints, status: int, failure: str, first: bytes) -> None:
    """Of a refusal of the path, the method or the signature the first bytes may tell a person why; others may quote."""
    url = await endpoints.serve(sending(Response(status, b"x" * 1_000)))
    reply = await endpoints.caller.call(make_call(url))
    assert (reply.status, reply.body, reply.failure) == (status, first, failure)


async def test_pause_asked_for_is_handed_on(endpoints: Endpoints) -> None:
    """429 with Retry-After."""
    url = await endpoints.serve(sending(Response(429, retry_after="17")))
    reply = await endpoints.caller.call(make_call(url))
    assert (reply.failure, reply.retry_after) == (Failure.RATE_LIMITED, "17")


async def test_answer_at_the_cap_and_above(endpoints: Endpoints) -> None:
    """One byte decides."""
    url = await endpoints.serve(sending(Response(200, b"x" * 1_000)))
    assert len((await endpoints.caller.call(make_call(url, most=1_000))).body) == 1_000
    reply = await endpoints.caller.call(make_call(url, most=999))
    assert (reply.failure, reply.body) == (Failure.TOO_LARGE, b"")


async def test_compressed_answers_are_none(endpoints: Endpoints) -> None:
    """Nothing is decompressed."""
    url = await endpoints.serve(sending(Response(200, b"\x1f\x8b", is_compressed=True)))
    assert (await endpoints.caller.call(make_call(url))).failure is Failure.COMPRESSED


async def test_deadline_ends_the_call(endpoints: Endpoints) -> None:
    """An endpoint that never answers."""

    async def hanging(call: EndpointCall) -> Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    url = await endpoints.serve(hanging)
    reply = await endpoints.caller.call(make_call(url, timeout_ms=200))
    assert (reply.failure, reply.status) == (Failure.TIMEOUT, 0)


async def test_nobody_there_is_a_refusal(endpoints: Endpoints) -> None:
    """Never an exception."""
    reply = await endpoints.caller.call(make_call("http://127.0.0.1:1/check"))
    assert (reply.failure, reply.endpoint) == (Failure.REFUSED, "http://127.0.0.1:1/check")
