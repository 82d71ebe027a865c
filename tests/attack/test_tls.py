"""TLS of the bridge's own: who gets in, what happens to those who do not, and certificates that change."""

import asyncio
import os
import socket
import ssl
import warnings
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from api.web.server import ServeConfig
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.authority import Authority
from tests.support.bad_requests import GOOD
from tests.support.live_server import HOST, LiveServer, serve

CAP = 8
GET = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
KEPT = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
ORDER = GOOD.replace(b"<group>", b"_group_").replace(b"<topic>", b"_topic_")
POST = b"POST /v1/transactions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
OK = b"HTTP/1.1 200 "


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs what a test needs."""
    return Authority(tmp_path)


def secured(authority: Authority, **options: object) -> ServeConfig:
    """A port with its certificates."""
    return ServeConfig(host=HOST, port=0, certificates=authority.certificates(), **options)  # type: ignore[arg-type]


async def connect(live: LiveServer, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, secured if asked for."""
    return await asyncio.open_connection(HOST, live.port, ssl=tls)


async def ask(live: LiveServer, tls: ssl.SSLContext) -> bytes:
    """The answer on a connection of its own."""
    reader, writer = await connect(live, tls)
    try:
        writer.write(GET)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_new_versions_are_spoken(fake: FakeTransactions, authority: Authority, version: ssl.TLSVersion) -> None:
    """With ciphers that keep what is past secret."""
    tls = authority.client()
    tls.minimum_version = tls.maximum_version = version
    async with serve(make_services(fake), secured(authority), tls) as live:
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
    async with serve(make_services(fake), secured(authority), authority.client()) as live:
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
            await connect(live, tls)
        assert (await live.send_raw(GET)).startswith(OK)


@pytest.mark.parametrize("sent", [GET, b"\x80\x2e\x01\x00\x02", b"\x16\x03\x01\x00\x05hello", os.urandom(300)])
async def test_what_is_no_tls_is_closed(fake: FakeTransactions, authority: Authority, sent: bytes) -> None:
    """Plain HTTP above all: no reset, no answer in clear, and at once."""
    async with serve(make_services(fake), secured(authority, head_s=60.0), authority.client()) as live:
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
    async with serve(make_services(fake), secured(authority, head_s=0.2), authority.client()) as live:
        reader, writer = await connect(live, None)
        writer.write(start)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_connections_before_their_handshake_keep_nobody_out(fake: FakeTransactions, authority: Authority) -> None:
    """They count, and the one that has been there longest is ended for a new one."""
    config = secured(authority, connections=CAP, head_s=60.0)
    async with serve(make_services(fake), config, authority.client()) as live, AsyncExitStack() as stack:
        opened = [await connect(live, None) for _ in range(3 * CAP)]
        for _, writer in opened:
            stack.callback(writer.close)
        assert (await live.send_raw(GET)).startswith(OK)
        assert await asyncio.wait_for(opened[0][0].read(), 10) == b""


async def test_end_of_the_process_waits_for_nobody_at_rest(fake: FakeTransactions, authority: Authority) -> None:
    """A client that does not say that it ends, too, is not waited for: asyncio's own TLS does, for 30 s."""
    tls = authority.client()
    async with serve(make_services(fake), secured(authority, drain_s=60.0), tls) as live:
        with ssl_socket(live, tls) as client:
            await asyncio.to_thread(client.sendall, KEPT)
            assert (await asyncio.to_thread(client.recv, 12)) == OK[:12]
            live.stop.set()
            while live.server._server.server_state.connections:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


def ssl_socket(live: LiveServer, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A client whose thread does nothing beside; the handshake goes on when it first sends."""
    plain = socket.create_connection((HOST, live.port))
    return tls.wrap_socket(plain, server_hostname=HOST, do_handshake_on_connect=False)
