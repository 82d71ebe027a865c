"""One connection after the other: slow, greedy, pipelined, unwanted; and the end of the process."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from api.web.guard import MARK
from api.web.limits import HttpLimits
from api.web.server import ApiServer, ServeConfig, bind
from bridge.clock import SystemClock
from bridge.core.errors import ConfigError
from bridge.core.grants import Grant, Verb
from bridge.service.access import AccessConfig, AccessService
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import open_new_database
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import GOOD, Facts
from tests.support.live_server import HOST, LiveServer, serve
from tests.support.problems import check_problem

HURRY = HttpLimits(receive_s=0.2)
FAST = ServeConfig(port=0, head_s=0.2)
GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
UNWANTED = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 300000\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
POST = b"POST /v1/transactions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
ORDER = GOOD.replace(b"<group>", b"_group_").replace(b"<topic>", b"_topic_")


def header_names(answer: bytes) -> list[list[bytes]]:
    """The names of the headers of every answer, sorted."""
    heads = [part.split(b"\r\n\r\n")[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    return [sorted(line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]) for head in heads]


def statuses(answer: bytes) -> list[int]:
    """Status of every answer on a connection."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("start", [b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: a\r\n", GET + b"GET /li"])
async def test_head_that_does_not_come_is_not_waited_for(start: bytes, fake: FakeTransactions) -> None:
    """408 and closed; also behind a good request."""
    async with serve(make_services(fake), FAST) as live:
        answer = await live.send_raw(start)
    assert statuses(answer)[-1] == 408
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["type"].endswith("/request-timeout")


@pytest.mark.parametrize("start", [b"", b"\r\n\r\n"])
async def test_silent_connection_is_closed(start: bytes, fake: FakeTransactions) -> None:
    """There is no request to answer."""
    async with serve(make_services(fake), FAST) as live:
        assert statuses(await live.send_raw(start)) in ([], [408])


@pytest.mark.parametrize("framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])
async def test_body_that_does_not_come_is_not_waited_for(framing: bytes, fake: FakeTransactions) -> None:
    """408 and closed; nothing was done."""
    async with serve(make_services(fake, limits=HURRY)) as live:
        answer = await live.send_raw(POST + framing)
    assert statuses(answer) == [408]
    assert b"connection: close" in answer.lower()
    assert fake.views == {}


async def test_body_that_is_cut_off_is_not_acted_on(live: LiveServer, fake: FakeTransactions) -> None:
    """Half a body is no body, even if it is JSON already."""
    await live.send_raw(POST + b"Content-Length: 1000\r\n\r\n" + GOOD, half_close=True)
    assert fake.views == {}
    assert (await live.client.get("/livez")).status_code == 200


async def test_trickled_body_is_whole_or_too_late(fake: FakeTransactions) -> None:
    """The time is for the whole body: a byte now and then does not extend it."""
    async with serve(make_services(fake, limits=HURRY)) as live:
        reader, writer = await asyncio.open_connection(HOST, live.port)
        writer.write(POST + b"Content-Length: 1000000\r\n\r\n")
        answering = asyncio.ensure_future(reader.readline())  # what follows may be cut by the byte sent too late
        while not answering.done():
            writer.write(b" ")
            await asyncio.wait([answering], timeout=0.02)
        writer.close()
        assert statuses(answering.result()) == [408]


async def test_unwanted_body_is_thrown_away_and_the_connection_goes_on(live: LiveServer) -> None:
    """A refusal before the body is read costs the client no connection."""
    unwanted = UNWANTED + b"" + b"x" * 300_000
    assert statuses(await live.send_raw(unwanted + GET + LAST)) == [404, 200, 200]


async def test_unwanted_body_is_not_taken_for_ever(fake: FakeTransactions) -> None:
    """The answer is out; the rest of the body has as long as a head."""
    async with serve(make_services(fake), FAST) as live:
        answer = await live.send_raw(UNWANTED + b"x")
    assert statuses(answer) == [404]


async def test_large_body_is_refused_although_the_client_goes_on_sending(live: LiveServer) -> None:
    """The client reads 413, not a broken connection."""
    sent = POST + b"Content-Length: 20000000\r\n\r\n" + b" " * 20_000_000
    assert statuses(await live.send_raw(sent)) == [413]


async def test_body_is_not_asked_for_if_it_is_too_large(live: LiveServer) -> None:
    """A client that waits for "100 Continue" gets its refusal at once."""
    head = POST + b"Expect: 100-continue\r\nContent-Length: 20000000\r\n\r\n"
    assert statuses(await live.send_raw(head)) == [413]


async def test_body_is_asked_for_if_it_is_wanted(live: LiveServer) -> None:
    """ "100 Continue", then the answer."""
    reader, writer = await asyncio.open_connection(HOST, live.port)
    writer.write(POST + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(ORDER)
    assert statuses(await reader.read()) == [201]
    writer.close()


async def test_pipelined_requests_are_answered_in_order(live: LiveServer) -> None:
    """One connection, many requests at once."""
    assert statuses(await live.send_raw(GET * 20 + LAST)) == [200] * 21


async def test_prepares_and_commits_on_one_connection_are_answered_in_order(live: LiveServer, facts: Facts) -> None:
    """Whole ones, which the framework never sees, before and behind others."""
    prepare = POST + b"Content-Length: %d\r\n\r\n" % len(ORDER) + ORDER
    commit = (
        f"POST /v1/transactions/{facts.prepared}/commit HTTP/1.1\r\nHost: a\r\n{MARK}: 1\r\nContent-Length: 0\r\n\r\n"
    )
    answer = await live.send_raw(prepare + commit.encode() + GET + prepare + LAST)
    assert statuses(answer) == [201, 200, 200, 201, 200]


@pytest.mark.parametrize("kept", [20, len(POST) + 10, -len(ORDER), -len(ORDER) // 2, -1])
async def test_request_in_pieces_is_answered_as_a_whole_one(kept: int, live: LiveServer) -> None:
    """Whoever serves it: the same status and headers, and the connection goes on."""
    request = POST + b"Content-Length: %d\r\n\r\n" % len(ORDER) + ORDER
    whole = await live.send_raw(request + LAST)
    reader, writer = await asyncio.open_connection(HOST, live.port)
    writer.write(request[:kept])
    await asyncio.sleep(0.05)
    writer.write(request[kept:] + LAST)
    in_pieces = await reader.read()
    writer.close()
    assert statuses(whole) == statuses(in_pieces) == [201, 200]
    assert header_names(whole) == header_names(in_pieces)


async def test_whole_body_in_chunks_is_taken(live: LiveServer) -> None:
    """Two chunks in one piece; and the connection ends when it is asked to."""
    half = len(ORDER) // 2
    chunks = b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in (ORDER[:half], ORDER[half:], b"")])
    answer = await live.send_raw(POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert statuses(answer) == [201]
    assert b"connection: close" in answer.lower()


async def test_trailers_are_no_headers(tmp_path: Path) -> None:
    """What stands behind a body proves nothing: proxies look at heads alone. Bytes of both are bounded together."""
    access = AccessService(open_new_database(tmp_path), SystemClock(), AccessConfig(is_open=False))
    who = Who("ops", "")
    await access.put("shop", [Grant(Verb.PREPARE, "_group_", "*")], who)
    made = await access.make_key("shop", None, None, who)
    assert isinstance(made, MadeKey)
    proof = f"Authorization: Bearer {made.text}\r\n".encode()
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(ORDER), ORDER)
    async with serve(replace(make_services(FakeTransactions()), access=access)) as live:
        for head, trailer, told in (
            (b"", proof, [401]),
            (proof, proof + b"Host: b\r\nX-Request-Id: behind\r\n", [201]),
            (proof, b"X: " + b"x" * 17_000 + b"\r\n", [431]),
        ):
            answer = await live.send_raw(POST + head + b"Connection: close\r\n" + chunks + trailer + b"\r\n")
            assert statuses(answer) == told
            assert b"behind" not in answer


async def test_garbage_behind_a_request_does_not_steal_its_answer(facts: Facts, fake: FakeTransactions) -> None:
    """A 400 in its place would say "nothing was done" of what is being done."""
    fake.gate = asyncio.Event()
    async with serve(make_services(fake)) as live:
        path = f"/v1/transactions/{facts.prepared}/commit"
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{MARK}: 1\r\nContent-Length: 0\r\n\r\n"
        answering = asyncio.ensure_future(live.send_raw(head.encode() + b"\x00\x01 garbage\r\n\r\n"))
        while "in_flight 2.0" not in (await live.client.get("/metrics")).text:
            pass
        fake.gate.set()
        assert statuses(await answering) == [200]


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_offer_to_upgrade_is_ignored(method: bytes, live: LiveServer) -> None:
    """Some clients offer HTTP/2 with their first request, with a body too; the connection goes on as it is."""
    body = b'{"resolutions":[]}'
    request = (
        method + b" /v1/resolutions HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Type: application/json\r\n"
    )
    framed = b"Content-Length: %d\r\n\r\n" % len(body) + body if method == b"POST" else b"\r\n"
    answer = await live.send_raw(request + framed + LAST)
    assert statuses(answer) == [422 if method == b"POST" else 405, 200]


@pytest.mark.parametrize("last", [b"1.1\r\nConnection: close, Upgrade", b"1.0\r\nConnection: Upgrade"])
async def test_last_request_of_a_connection_is_the_last_although_it_offers_to_upgrade(
    last: bytes, live: LiveServer
) -> None:
    """A client that waits for the end of the connection would wait for as long as one may rest."""
    answer = await live.send_raw(b"GET /livez HTTP/" + last + b"\r\nUpgrade: h2c\r\nHost: a\r\n\r\n" + GET)
    assert statuses(answer) == [200]


async def test_server_finishes_what_it_has(facts: Facts, fake: FakeTransactions) -> None:
    """After the signal: not ready, nothing new, the request in flight is answered, the port is free."""
    fake.gate = asyncio.Event()
    async with serve(make_services(fake)) as live:
        waiting = asyncio.ensure_future(live.client.get(f"/v1/transactions/{facts.prepared}"))
        while "in_flight 2.0" not in (await live.client.get("/metrics")).text:
            pass
        assert (await live.client.get("/readyz")).status_code == 200
        reader, writer = await asyncio.open_connection(HOST, live.port)
        live.stop.set()
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        fake.gate.set()
        assert (await waiting).status_code == 200
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection(HOST, live.port)


async def test_what_cannot_be_finished_in_time_is_unknown(facts: Facts, fake: FakeTransactions) -> None:
    """503 that says so, never a 500."""
    fake.gate = asyncio.Event()
    async with serve(make_services(fake), ServeConfig(port=0, drain_s=0)) as live:
        waiting = asyncio.ensure_future(live.client.post(f"/v1/transactions/{facts.prepared}/commit"))
        while "in_flight 2.0" not in (await live.client.get("/metrics")).text:
            pass
        live.stop.set()
        assert check_problem(await waiting, 503, "unavailable")["outcome"] == "unknown"


async def test_taken_port_is_told_at_once(live: LiveServer, fake: FakeTransactions) -> None:
    """With what to do, before anything is started."""
    with pytest.raises(ConfigError, match="choose another with --port"):
        bind(HOST, live.port)
    assert isinstance(live.server, ApiServer)


def test_port_is_taken_before_anybody_is_served_on_it() -> None:
    """As where `http.port` and `http.metrics_port` are one: the second was told that it listens; nobody reached it."""
    with bind(HOST, 0) as first, pytest.raises(ConfigError, match="Address already in use"):
        bind(HOST, first.getsockname()[1])


def test_host_that_has_no_address_is_told_in_words() -> None:
    """Not as a number of an error that no table has."""
    with pytest.raises(ConfigError, match=r"cannot listen on nobody\.invalid:0: (?!Unknown error)"):
        bind("nobody.invalid", 0)


async def test_processes_can_share_a_port(fake: FakeTransactions) -> None:
    """The system deals connections out; when one drains, the others have them all."""
    async with serve(make_services(fake), ServeConfig(port=0, reuse_port=True)) as first:
        shared = ServeConfig(port=first.port, reuse_port=True)
        request = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        async with serve(make_services(fake), shared) as second:
            for _ in range(64):
                assert b" 200 " in await first.send_raw(request)
            shares = [live.server._server.server_state.total_requests for live in (first, second)]
            assert min(shares) > 0
            assert sum(shares) == 64
        assert b" 200 " in await first.send_raw(request)
