"""TLS of the bridge's own: who gets in, what happens to those who do not, and certificates that change."""

import asyncio
import json
import os
import socket
import ssl
import warnings
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

import pytest

from api.web.limits import HttpLimits
from api.web.server import ServeConfig
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.authority import Authority
from tests.support.live_server import HOST, LiveServer, serve

CAP = 8
_UNSIGNED = 4  # bytes: versions in heads of records that are not enciphered mean nothing
MIB = 1024 * 1024
GET = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
KEPT = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
ORDER = {"producer_group": "g", "messages": [{"topic": "t"}]}
POST = b"POST /v1/transactions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
OK = b"HTTP/1.1 200 "


def configure(**options: object) -> ServeConfig:
    """Of a port of any number."""
    return ServeConfig(host=HOST, port=0, **options)  # type: ignore[arg-type]


async def connect(live: LiveServer, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, secured if asked for."""
    return await asyncio.open_connection(HOST, live.port, ssl=tls)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_new_versions_are_spoken(fake: FakeTransactions, authority: Authority, version: ssl.TLSVersion) -> None:
    """With ciphers that keep what is past secret."""
    tls = authority.client()
    tls.minimum_version = tls.maximum_version = version
    async with serve(make_services(fake), configure(), authority) as live:
        reader, writer = await connect(live, tls)
        chosen = writer.get_extra_info("cipher")[0]
        writer.write(GET)
        assert (await reader.read()).startswith(OK)
        writer.close()
    assert chosen.startswith(("ECDHE-", "TLS_"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_are_refused(fake: FakeTransactions, authority: Authority, version: ssl.TLSVersion) -> None:
    """In the handshake, with the alert that says so."""
    tls = authority.client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tls.minimum_version = tls.maximum_version = version
    tls.set_ciphers("ALL:@SECLEVEL=0")
    async with serve(make_services(fake), configure(), authority) as live:
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
            await connect(live, tls)
        assert (await live.send_raw(GET)).startswith(OK)


@pytest.mark.parametrize("sent", [GET, b"\x80\x2e\x01\x00\x02", b"\x16\x03\x01\x00\x05hello", os.urandom(300)])
async def test_what_is_no_tls_is_closed(fake: FakeTransactions, authority: Authority, sent: bytes) -> None:
    """Plain HTTP above all: no reset, no answer in clear, and at once."""
    async with serve(make_services(fake), configure(head_s=60.0), authority) as live:
        reader, writer = await connect(live, None)
        writer.write(sent)
        writer.write_eof()
        left = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert b"HTTP" not in left
        assert (await live.send_raw(GET)).startswith(OK)


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"], ids=["silent", "half a hello"])
async def test_handshake_that_does_not_come_is_not_waited_for(
    fake: FakeTransactions, authority: Authority, start: bytes
) -> None:
    """The time of a head is also that of its handshake."""
    async with serve(make_services(fake), configure(head_s=0.2), authority) as live:
        reader, writer = await connect(live, None)
        writer.write(start)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_connections_before_their_handshake_keep_nobody_out(fake: FakeTransactions, authority: Authority) -> None:
    """They count, and the one that has been there longest is ended for a new one."""
    config = configure(connections=CAP, head_s=60.0)
    async with serve(make_services(fake), config, authority) as live, AsyncExitStack() as stack:
        opened = [await connect(live, None) for _ in range(3 * CAP)]
        for _, writer in opened:
            stack.callback(writer.close)
        assert (await live.send_raw(GET)).startswith(OK)
        assert await asyncio.wait_for(opened[0][0].read(), 10) == b""


@pytest.mark.parametrize("flight", [0, 1], ids=["hello", "end of the handshake, and a request"])
async def test_bytes_changed_on_the_way_are_never_believed(
    fake: FakeTransactions, authority: Authority, flight: int
) -> None:
    """Each bit of a byte, one after another: nothing is applied but what was sent, and nothing fails inside."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    body = json.dumps(ORDER).encode()
    request = POST % len(body) + body
    async with serve(make_services(fake), configure(), authority) as live:
        whole = await converse(live, authority.client(), request, flight, None)
        assert whole.answer.startswith(b"HTTP/1.1 201 ")
        believed = 1
        for place in range(0, whole.flight_bytes, max(1, whole.flight_bytes // 150)):
            told = await converse(live, authority.client(), request, flight, place)
            believed += told.answer.startswith(b"HTTP/1.1 201 ")
            assert told.answer == b"" or told.answer.startswith(b"HTTP/1.1 201 ")
        assert sum(fake.batches) == believed <= 1 + _UNSIGNED
        assert {message.topic for messages in fake.bodies.values() for message in messages} <= {"t"}
        assert (await live.send_raw(GET)).startswith(OK)
        await live.client.aclose()
        await wait_for_no_connection(live)
    assert failures == []


class Conversed(NamedTuple):
    """What a client has read, and how long the flight was that might be changed."""

    answer: bytes
    flight_bytes: int


async def converse(
    live: LiveServer, context: ssl.SSLContext, request: bytes, flight: int, place: int | None
) -> Conversed:
    """A handshake and a request in two flights, a bit of one of which is changed."""
    received, ready = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, ready, server_hostname=HOST)
    reader, writer = await connect(live, None)
    size, number, answer = 0, 0, b""
    try:
        while number < 2:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                tls.write(request)
            sent = bytearray(ready.read())
            if number == flight:
                size = len(sent)
                if place is not None:
                    sent[place] ^= 1 << place % 8
            writer.write(sent)
            if number == 0:
                received.write(await asyncio.wait_for(reader.read(65_536), 20 if place is None else 0.5))
            number += 1
        writer.write_eof()
        while piece := await asyncio.wait_for(reader.read(65_536), 20):
            received.write(piece)
        answer = tls.read(65_536)
    except (OSError, TimeoutError):  # an SSLError is the first
        pass
    finally:
        writer.close()
    return Conversed(answer, size)


async def test_large_bodies_go_both_ways(fake: FakeTransactions, authority: Authority) -> None:
    """In many records; a client that takes nothing of its answer is cut off, with what was kept for it."""
    sent = {"producer_group": "g", "messages": [{"topic": "t", "value": "v" * MIB}] * 6}
    services = make_services(fake, limits=HttpLimits(body_bytes=8 * MIB))
    async with serve(services, configure(send_s=0.3), authority) as live:
        prepared = await live.client.post("/v1/transactions", json=sent)
        assert prepared.status_code == 201
        path = f"/v1/transactions/{prepared.json()['transaction_id']}?include=messages"
        read = await live.client.get(path)
        assert [message["value"] for message in read.json()["messages"]] == ["v" * MIB] * 6
        with ssl_socket(live, authority.client()) as deaf:
            await asyncio.to_thread(deaf.sendall, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            await live.client.aclose()
            await wait_for_no_connection(live)


async def test_refused_client_reads_why(fake: FakeTransactions, authority: Authority) -> None:
    """It goes on sending what it promised, and then reads: a whole answer, and that nothing comes after it."""
    services = make_services(fake, limits=HttpLimits(body_bytes=MIB))
    async with serve(services, configure(), authority) as live:
        with ssl_socket(live, authority.client()) as client:

            def send_and_read() -> bytes:
                client.sendall(POST % (4 * MIB) + b"x" * (4 * MIB))
                pieces = []
                while piece := client.recv(65_536):
                    pieces.append(piece)
                return b"".join(pieces)

            answer = await asyncio.to_thread(send_and_read)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"not_applied" in answer


@pytest.mark.parametrize(
    ("host", "is_secured", "is_told"), [("0.0.0.0", True, True), ("0.0.0.0", False, False), (HOST, True, False)]
)
async def test_browsers_are_told_to_stay_with_tls(
    fake: FakeTransactions, authority: Authority, host: str, is_secured: bool, is_told: bool
) -> None:
    """By every answer; not on loopback, which every server of the machine shares."""
    config = ServeConfig(host=host, port=0)
    async with serve(make_services(fake), config, authority if is_secured else None) as live:
        for answer in (await live.client.get("/livez"), await live.client.post("/v1/transactions", json=ORDER)):
            assert ("strict-transport-security" in answer.headers) is is_told


async def test_end_of_the_process_waits_for_nobody_at_rest(fake: FakeTransactions, authority: Authority) -> None:
    """A client that does not say that it ends, too, is not waited for: asyncio's own TLS does, for 30 s."""
    tls = authority.client()
    async with serve(make_services(fake), configure(drain_s=60.0), authority) as live:
        with ssl_socket(live, tls) as client:
            await asyncio.to_thread(client.sendall, KEPT)
            assert (await asyncio.to_thread(client.recv, 12)) == OK[:12]
            live.stop.set()
            await wait_for_no_connection(live)


async def wait_for_no_connection(live: LiveServer) -> None:
    """Nobody tells."""
    async with asyncio.timeout(20):
        while live.server._server.server_state.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def ssl_socket(live: LiveServer, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A client whose thread does nothing beside; the handshake goes on when it first sends."""
    plain = socket.create_connection((HOST, live.port))
    return tls.wrap_socket(plain, server_hostname=HOST, do_handshake_on_connect=False)
