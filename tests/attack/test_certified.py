"""Certificates of clients as credentials: whom they mean, until when, and for nobody else."""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from cryptography.x509 import DNSName, GeneralName, RFC822Name, UniformResourceIdentifier

from api.web.server import ServeConfig
from api.web.short_way import ShortWay
from api.web.transports import TlsFiles
from bridge.clock import SystemClock
from bridge.core.grants import Grant, Verb
from bridge.service.access import AccessConfig, AccessService
from bridge.service.operate import Who
from bridge.sql.engine import open_new_database
from outbox import AsyncBridge, Bridge, BridgeConfig, HttpConfig, Message, NotPermitted, Prepared
from outbox.client.errors import HandOverUnavailable
from outbox.hand_over import HttpHandOver, OutboxRow, PublishStatus
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.authority import FOR_SERVERS, Authority
from tests.support.live_server import HOST, LiveServer, serve

ORDER = b'{"producer_group":"orders","messages":[{"topic":"orders.created","value":"x"}]}'
HEAD = b"POST /v1/transactions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
STREAM = (
    b"POST /v1/transactions/batch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/x-ndjson\r\n\r\n"
)
SPIFFE = UniformResourceIdentifier("spiffe://prod/ns/shop/sa/orders")
PRINCIPALS = {
    "URI:spiffe://prod/ns/shop/sa/orders": "shop",
    "DNS:orders.shop.svc": "shop",
    "DNS:baker.svc": "baker",
    "DNS:shop.example": "shop",
    "DNS:*.wild.svc": "shop",
}
ALLOWED, FORBIDDEN, UNKNOWN = b"201", b"403", b"401"
MEANT: Sequence[tuple[Sequence[GeneralName], bytes]] = (
    ([SPIFFE], ALLOWED),
    ([DNSName("orders.shop.svc")], ALLOWED),
    ([DNSName("Orders.SHOP.svc")], ALLOWED),
    ([SPIFFE, DNSName("orders.shop.svc"), DNSName("else.svc")], ALLOWED),
    ([DNSName("*.wild.svc")], ALLOWED),
    ([DNSName("baker.svc")], FORBIDDEN),
    ([DNSName("x.wild.svc")], UNKNOWN),
    ([DNSName("*.shop.svc")], UNKNOWN),
    ([DNSName("orders.shop.svc.evil")], UNKNOWN),
    ([UniformResourceIdentifier("spiffe://prod/ns/shop/sa/orders/")], UNKNOWN),
    ([UniformResourceIdentifier("spiffe://PROD/ns/shop/sa/orders")], UNKNOWN),
    ([UniformResourceIdentifier("orders.shop.svc")], UNKNOWN),
    ([DNSName("spiffe://prod/ns/shop/sa/orders")], UNKNOWN),
    ([RFC822Name("shop@orders.shop.svc")], UNKNOWN),
    ([DNSName("shop")], UNKNOWN),
    ([SPIFFE, DNSName("baker.svc")], UNKNOWN),
    ([], UNKNOWN),
)
WHO = Who("ops", "")


class Client:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self, lines: bytes = b"") -> bytes:
        """The status of a prepare, with these lines in its head."""
        self.writer.write(HEAD % (len(ORDER), lines, ORDER))
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 20)
        await self._reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
        return head[9:12]


@pytest_asyncio.fixture
async def access(tmp_path: Path) -> AccessService:
    """`shop` may prepare, `baker` is known and may not."""
    access = AccessService(open_new_database(tmp_path), SystemClock(), AccessConfig(is_open=False))
    await access.put("shop", [Grant(Verb.PREPARE, "orders", "orders.*")], WHO)
    await access.put("baker", [], WHO)
    return access


@pytest_asyncio.fixture
async def live(access: AccessService, authority: Authority) -> AsyncIterator[LiveServer]:
    """A bridge that asks for certificates and believes their names."""
    certificates = authority.certificates(is_client_needed=False, principals=PRINCIPALS)
    services = replace(make_services(FakeTransactions()), access=access)
    async with serve(services, ServeConfig(port=0, certificates=certificates), authority) as live:
        yield live


@asynccontextmanager
async def connected(live: LiveServer, authority: Authority, shown: TlsFiles | None) -> AsyncIterator[Client]:
    """A connection with this certificate."""
    client = Client(*await replace(live, tls=authority.client(shown)).connect())
    try:
        yield client
    finally:
        client.writer.close()


async def test_names_mean_whom_the_settings_say(live: LiveServer, authority: Authority) -> None:
    """Exactly; a subject means nobody, nor do names of two principals."""
    for names, status in MEANT:
        async with connected(live, authority, authority.issue_client(*names)) as client:
            assert [await client.ask() for _ in range(3)] == [status] * 3, names


async def test_identity_stays_with_its_connection(
    live: LiveServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very same bytes mean another caller elsewhere, however often they went the short way."""
    begun: list[str | None] = []
    begin = ShortWay.begin

    def note(self: ShortWay, *arguments: object) -> bool:
        begun.append(self._certified)
        return begin(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ShortWay, "begin", note)
    shop, baker = authority.issue_client(SPIFFE), authority.issue_client(DNSName("baker.svc"))
    async with (
        connected(live, authority, shop) as first,
        connected(live, authority, baker) as second,
        connected(live, authority, None) as third,
        connected(live, authority, authority.issue_client(DNSName("orders.shop.svc"))) as fourth,
    ):
        for _ in range(4):
            asked = [await client.ask() for client in (first, second, third, fourth)]
            assert asked == [ALLOWED, FORBIDDEN, UNKNOWN, ALLOWED]
    assert begun == ["shop"] * 7


async def test_identity_ends_with_its_certificate(live: LiveServer, authority: Authority) -> None:
    """Also on a connection that stays, and whatever was remembered of it."""
    shown = authority.issue_client(SPIFFE, life_s=3)
    async with connected(live, authority, shown) as client:
        assert [await client.ask() for _ in range(3)] == [ALLOWED] * 3
        end = time.monotonic() + 20
        while (status := await client.ask()) == ALLOWED:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        assert [status, await client.ask()] == [UNKNOWN] * 2


async def test_stream_ends_with_the_certificate_of_its_connection(live: LiveServer, authority: Authority) -> None:
    """It can last for days: what comes after the end is nobody's."""
    shown = authority.issue_client(SPIFFE, life_s=3)
    reader, writer = await replace(live, tls=authority.client(shown)).connect()
    writer.write(STREAM)
    end = time.monotonic() + 20
    answers = []
    while not answers or b'"status":201' in answers[-1]:
        assert time.monotonic() < end
        writer.write(b"%x\r\n%b\n\r\n" % (len(ORDER) + 1, ORDER))
        answers.append(await asyncio.wait_for(reader.readuntil(b"}\n"), 20))
        await asyncio.sleep(0.1)
    assert len(answers) > 1
    assert b'"status":401' in answers[-1]
    assert await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 20)
    writer.close()


async def test_session_outlives_no_certificate(live: LiveServer, authority: Authority) -> None:
    """TLS 1.2 takes a session up again without looking at certificates: an old one means nobody, not even for a
    request that comes with the end of the handshake."""
    tls = authority.client(authority.issue_client(SPIFFE, life_s=3))
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    first = await ask_at_once(live, tls, None)
    assert first.status == ALLOWED
    again = await ask_at_once(live, tls, first.session)
    assert (again.status, again.is_reused) == (ALLOWED, True)
    await asyncio.sleep(4)
    for _ in range(5):
        late = await ask_at_once(live, tls, first.session)
        assert (late.status, late.is_reused) == (UNKNOWN, True)


class Told(NamedTuple):
    """What came of a connection."""

    status: bytes
    session: ssl.SSLSession | None
    is_reused: bool


async def ask_at_once(live: LiveServer, context: ssl.SSLContext, session: ssl.SSLSession | None) -> Told:
    """A request that travels with the client's last words of the handshake."""
    received, ready = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, ready, server_hostname=HOST, session=session)
    reader, writer = await asyncio.open_connection(HOST, live.port)
    is_over = False
    while not is_over:
        try:
            tls.do_handshake()
            is_over = True
            tls.write(HEAD % (len(ORDER), b"", ORDER))
        except ssl.SSLWantReadError:
            pass
        writer.write(ready.read())
        if not is_over:
            received.write(await asyncio.wait_for(reader.read(65_536), 20))
    answer = b""
    while not answer:
        received.write(await asyncio.wait_for(reader.read(65_536), 20))
        with suppress(ssl.SSLWantReadError):
            answer = tls.read(65_536)
    writer.close()
    return Told(answer[9:12], tls.session, bool(tls.session_reused))


async def test_grants_that_are_taken_away_end_it_at_once(
    live: LiveServer, authority: Authority, access: AccessService
) -> None:
    """As for keys."""
    async with connected(live, authority, authority.issue_client(SPIFFE)) as client:
        assert [await client.ask() for _ in range(3)] == [ALLOWED] * 3
        await access.put("shop", [], WHO)
        assert await client.ask() == FORBIDDEN
        await access.delete("shop", WHO)
        assert await client.ask() == FORBIDDEN


async def test_credential_that_is_sent_counts_instead(live: LiveServer, authority: Authority) -> None:
    """And must be right."""
    async with connected(live, authority, authority.issue_client(SPIFFE)) as client:
        assert await client.ask(b"Authorization: Bearer obk_nonsense\r\n") == UNKNOWN
        assert await client.ask(b"Authorization: Basic c2hvcDp4\r\n") == UNKNOWN
        assert await client.ask() == ALLOWED


async def test_page_in_a_browser_with_a_certificate_is_refused(live: LiveServer, authority: Authority) -> None:
    """A browser shows it for whoever asks."""
    async with connected(live, authority, authority.issue_client(SPIFFE)) as client:
        assert await client.ask(b"Origin: https://evil.example\r\n") == FORBIDDEN
        assert await client.ask() == ALLOWED


async def test_certificate_of_a_server_is_none_of_a_client(live: LiveServer, authority: Authority) -> None:
    """Whoever can have one for a name need not be who calls."""
    shown = authority.issue_client(SPIFFE, purpose=FOR_SERVERS)
    with pytest.raises((ConnectionError, OSError, asyncio.IncompleteReadError)):
        async with connected(live, authority, shown) as client:
            await client.ask()


def renew(files: TlsFiles, other: TlsFiles) -> None:
    """Both files in place of these, as cert-manager and SPIFFE's helpers do."""
    for path, new in ((files.cert, other.cert), (files.key, other.key)):
        new.replace(path)


async def test_sdk_shows_a_renewed_certificate_without_a_restart(live: LiveServer, authority: Authority) -> None:
    """On each way of its own, also where a connection is open; half of a pair is not taken."""
    files = authority.issue_client(DNSName("baker.svc"))
    http = HttpConfig(ca_file=str(authority.ca_file), client_cert_file=str(files.cert), client_key_file=str(files.key))
    url, order = f"https://{HOST}:{live.port}", Message("orders.created", value=b"x")
    config = BridgeConfig(http=http)
    async with AsyncBridge(url, "orders", config=config) as bridge:
        with Bridge(url, "orders", config=config) as blocking:

            async def ask() -> list[type[object]]:
                """Who is believed may do."""
                return [
                    type(one)
                    for one in await asyncio.gather(
                        bridge.prepare(order), asyncio.to_thread(blocking.prepare, order), return_exceptions=True
                    )
                ]

            assert await ask() == [NotPermitted, NotPermitted]
            other = authority.issue_client(SPIFFE)
            kept = other.cert.read_bytes()
            other.cert.write_bytes(files.cert.read_bytes())
            renew(files, other)
            await asyncio.sleep(1.1)
            assert await ask() == [NotPermitted, NotPermitted]
            files.cert.write_bytes(kept)
            await asyncio.sleep(1.1)
            assert await ask() == [Prepared, Prepared]


async def test_relay_shows_a_renewed_certificate_without_a_restart(
    live: LiveServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows wait as long as nobody believes it."""
    files = authority.issue_client(DNSName("baker.svc"))
    monkeypatch.setenv("OUTBOX_BRIDGE_CA_FILE", str(authority.ca_file))
    monkeypatch.setenv("OUTBOX_BRIDGE_CLIENT_CERT_FILE", str(files.cert))
    monkeypatch.setenv("OUTBOX_BRIDGE_CLIENT_KEY_FILE", str(files.key))
    hand_over = HttpHandOver(f"https://{HOST}:{live.port}", "orders")
    row = OutboxRow(1, "1", "key-1", "orders.created")
    assert [each.fate for each in await asyncio.to_thread(hand_over.publish, [row])] == [PublishStatus.NOT_YET]
    renew(files, authority.issue_client(SPIFFE))
    await asyncio.sleep(1.1)
    assert [each.fate for each in await asyncio.to_thread(hand_over.publish, [row])] == [PublishStatus.PUBLISHED]
    hand_over.close()


@pytest.mark.parametrize("scheme", ["https", "HTTPS", " https"])
async def test_relay_believes_no_bridge_that_nobody_has_vouched_for(live: LiveServer, scheme: str) -> None:
    """However its address is written: in capitals, rows and key went to whoever answered there."""
    url, row = f"{scheme}://{HOST}:{live.port}", OutboxRow(1, "1", "key-1", "orders.created")
    with closing(HttpHandOver(url, "orders")) as hand_over, pytest.raises(HandOverUnavailable) as told:
        await asyncio.to_thread(hand_over.publish, [row])
    assert not told.value.is_sent
