"""Certificates: those that change while a process runs, and those that clients show."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from api.web.health import _certificates
from api.web.server import ServeConfig
from api.web.transports import Certificates, TlsFiles
from bridge.clock import SystemClock
from bridge.core.errors import ConfigError
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.authority import Authority
from tests.support.live_server import HOST, LiveServer, serve

GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = GET[:-2] + b"Connection: close\r\n\r\n"
OK = b"HTTP/1.1 200 "
PAST = datetime(2020, 1, 1, tzinfo=UTC)
Break = Callable[[Authority, TlsFiles], None]


def take_other_cert(authority: Authority, files: TlsFiles) -> None:
    """Half of a new pair, as between two writes of a renewal."""
    files.cert.write_bytes(authority.issue(at="other").cert.read_bytes())


def cut_off(_authority: Authority, files: TlsFiles) -> None:
    """As a disk that is full does."""
    files.cert.write_bytes(files.cert.read_bytes()[:100])


def remove_key(_authority: Authority, files: TlsFiles) -> None:
    """Or its folder is gone."""
    files.key.unlink()


def encipher_key(_authority: Authority, files: TlsFiles) -> None:
    """Nobody is there to type its password."""
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    password = serialization.BestAvailableEncryption(b"geheim")
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(pem, form, password))


def empty_client_ca(_authority: Authority, files: TlsFiles) -> None:
    """Then no client would be taken."""
    assert files.client_ca is not None
    files.client_ca.write_bytes(b"")


BREAKS = pytest.mark.parametrize("harm", [take_other_cert, cut_off, remove_key, encipher_key, empty_client_ca])


async def read_serial(live: LiveServer, tls: ssl.SSLContext) -> str:
    """The number of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection(HOST, live.port, ssl=tls)
    shown: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return shown


async def ask(live: LiveServer, tls: ssl.SSLContext) -> bytes:
    """The answer on a connection of its own. Raises SSLError."""
    return await replace(live, tls=tls).send_raw(LAST)


@BREAKS
async def test_broken_files_leave_what_is_shown(fake: FakeTransactions, authority: Authority, harm: Break) -> None:
    """Told once, with the file; whole ones are taken as soon as they are there."""
    certificates = authority.certificates(is_client_needed=False)
    config = ServeConfig(port=0, certificates=certificates)
    tls = authority.client()
    async with serve(make_services(fake), config, authority) as live:
        first = await read_serial(live, tls)
        harm(authority, certificates.files)
        with capture_logs() as logs:
            certificates.look()
            certificates.look()
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("certificates_kept", "error")]
        assert "http.tls" in certificates.fault
        assert str(authority.folder) in certificates.fault
        assert await read_serial(live, tls) == first
        authority.certificates(is_client_needed=False)  # writes all files anew
        with capture_logs() as logs:
            certificates.look()
            certificates.look()
        assert [entry["event"] for entry in logs] == ["certificates_read"]
        assert certificates.fault == ""
        assert await read_serial(live, tls) != first


@BREAKS
def test_broken_files_end_a_process_that_begins(authority: Authority, harm: Break) -> None:
    """With the file in the message, and no secret."""
    files = authority.certificates(is_client_needed=False).files
    harm(authority, files)
    with pytest.raises(ConfigError, match=rf"http\.tls.*{authority.folder}") as error:
        Certificates(files)
    assert "geheim" not in str(error.value)


async def test_new_files_are_taken_while_connections_stay(fake: FakeTransactions, authority: Authority) -> None:
    """Within seconds, by whoever connects then; also where a folder is swapped, as Kubernetes does."""
    old, new, link = authority.folder / "old", authority.folder / "new", authority.folder / "now"
    for folder in (old, new):
        folder.mkdir()
        Authority(folder, authority.ca).issue()
    link.symlink_to(old)
    certificates = Certificates(TlsFiles(link / "server.pem", link / "server.key"))
    looking = asyncio.create_task(certificates.run_forever(SystemClock()))
    tls = authority.client()
    async with serve(make_services(fake), ServeConfig(port=0, certificates=certificates), authority) as live:
        reader, writer = await live.connect()
        first = await read_serial(live, tls)
        swapped = authority.folder / "swapped"
        swapped.symlink_to(new)
        swapped.rename(link)
        async with asyncio.timeout(20):
            while await read_serial(live, tls) == first:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        writer.write(LAST)
        assert (await reader.read()).startswith(OK)
        writer.close()
    looking.cancel()


async def test_certificate_that_has_ended_is_told(authority: Authority) -> None:
    """Nobody could ask the process any more, whose readiness said that all was well."""

    class HurriedClock(SystemClock):
        async def sleep_ms(self, duration_ms: int) -> None:
            await asyncio.sleep(0)

    clock = HurriedClock()
    certificates = Certificates(authority.issue(not_after=PAST))
    with capture_logs() as logs:
        looking = asyncio.create_task(certificates.run_forever(clock))
        while not logs:
            await clock.sleep_ms(1)
        told = await _certificates(certificates, clock)
        assert (told.is_ok, told.is_degraded) == (False, True)
        assert told.detail.startswith(f"certificate {certificates.files.cert} has ended")
        authority.issue()
        while not (await _certificates(certificates, clock)).is_ok:
            await clock.sleep_ms(1)
        looking.cancel()
    assert [entry["event"] for entry in logs] == ["certificate_ended", "certificates_read"]


async def test_clients_without_a_certificate_are_refused_where_one_is_needed(
    fake: FakeTransactions, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Or with one that somebody else signed, or that has expired; health is no exception."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    config = ServeConfig(port=0, certificates=authority.certificates(is_client_needed=True))
    known = authority.client(authority.issue("orders.example", at="known"))
    async with serve(make_services(fake), config, authority) as live:
        assert (await ask(live, known)).startswith(OK)
        await check_refused(live, authority.client(), "CERTIFICATE_REQUIRED")
        await check_refused(live, authority.client(stranger.issue(at="stranger")), "UNKNOWN_CA")
        expired = authority.issue("orders.example", at="expired", not_after=PAST)
        await check_refused(live, authority.client(expired), "CERTIFICATE_EXPIRED")
        assert (await ask(live, known)).startswith(OK)


async def test_clients_may_show_a_certificate(
    fake: FakeTransactions, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whoever shows none is let in; whoever shows a false one is not."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    config = ServeConfig(port=0, certificates=authority.certificates(is_client_needed=False))
    async with serve(make_services(fake), config, authority) as live:
        assert (await ask(live, authority.client())).startswith(OK)
        assert (await ask(live, authority.client(authority.issue("orders.example", at="known")))).startswith(OK)
        await check_refused(live, authority.client(stranger.issue(at="stranger")), "UNKNOWN_CA")


async def check_refused(live: LiveServer, tls: ssl.SSLContext, why: str) -> None:
    """With TLS 1.3 a client only finds out when it reads."""
    with pytest.raises(ssl.SSLError, match=f"ALERT_{why}"):
        await ask(live, tls)
