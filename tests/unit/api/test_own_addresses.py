"""Where Kafka, SQL and the bridge listen, found out and kept up to date; what issuers of tokens may send."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from api import outgoing
from api.outgoing import OwnAddresses
from bridge.clock import SystemClock
from bridge.core.errors import StoreUnavailable
from bridge.service.issuers import IssuerAway
from bridge.sql.engine import Database
from bridge.store.message_store import ClusterDescription, TopicAdmin
from checker.endpoint_guard import CallbackPolicy, CheckedUrl, check_addresses, check_url, parse_networks, parse_servers

ANYWHERE = parse_networks(["0.0.0.0/0", "::/0"])


class Cluster(TopicAdmin):
    """Brokers that move."""

    def __init__(self, *brokers: str) -> None:
        self.brokers: Sequence[str] | None = brokers

    async def describe_cluster(self) -> ClusterDescription:
        if self.brokers is None:
            raise StoreUnavailable("no answer")
        return ClusterDescription("id", self.brokers)


class Names(dict[str, list[str]]):
    """A name server."""

    def resolve(self, host: str, _: int) -> list[str]:
        if host not in self:
            raise OSError(host)
        return self[host]


def refusal(own: OwnAddresses, url: str, *resolved: str) -> str | None:
    """Why a URL is refused when it is registered, or else when it is called."""
    policy = CallbackPolicy(ANYWHERE, own)
    checked = check_url(url, policy)
    return check_addresses(checked, resolved or [checked.host], policy) if isinstance(checked, CheckedUrl) else checked


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("kafka-1:9093,kafka-2", [("kafka-1", 9093), ("kafka-2", 9092)]),
        ("SASL_SSL://k:1, [::1]:2", [("k", 1), ("::1", 2)]),
        ("2001:db8::1:9092", [("2001:db8::1", 9092)]),
        ("", []),
    ],
)
def test_servers_are_read_as_the_client_reads_them(text: str, places: list[tuple[str, int]]) -> None:
    """Protocol, brackets and port are optional."""
    assert parse_servers(text) == places


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("postgresql://u:p@db:5433/b", [("db", 5433)]),
        ("postgresql://u:p@db/b", [("db", 5432)]),
        ("postgresql://u@/b?host=one:6432&host=two", [("one", 6432), ("two", 5432)]),
        ("postgresql://u@/b?host=/run/postgresql", []),
    ],
)
def test_places_of_a_database(url: str, places: list[tuple[str, int]]) -> None:
    """As its URL names them."""
    assert Database(url).addresses() == places


def test_file_has_no_place(tmp_path: Path) -> None:
    """SQLite listens nowhere."""
    assert Database(f"sqlite:///{tmp_path}/db").addresses() == []


async def test_this_machine_is_refused_under_all_its_addresses_at_that_port_alone() -> None:
    """Loopback has many addresses, and the wildcard leads there too."""
    own = OwnAddresses(Cluster("127.0.0.1:9092"), [], SystemClock(), Names().resolve)
    await own.run_once()
    for host in ("127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0", "localhost"):
        assert refusal(own, f"http://{host}:9092/", "192.0.2.9"), host
        assert refusal(own, f"http://{host}:9093/", "192.0.2.9") is None, host
    assert refusal(own, "http://shop.example:9092/", "::ffff:127.0.0.1")
    assert refusal(own, "http://shop.example:9092/", "192.0.2.7") is None


async def test_names_are_refused_with_all_that_they_resolve_to() -> None:
    """Whatever name or address leads there; the port counts."""
    own = OwnAddresses(Cluster(), [("db.internal", 5432)], SystemClock(), Names({"db.internal": ["192.0.2.5"]}).resolve)
    await own.run_once()
    for host in ("192.0.2.5", "DB.internal", "db.internal."):  # whatever else it resolves to
        assert refusal(own, f"http://{host}:5432/", "192.0.2.9"), host
        assert refusal(own, f"http://{host}:80/", "192.0.2.9") is None, host
    assert refusal(own, "http://alias.example:5432/", "192.0.2.9", "192.0.2.5")


async def test_brokers_are_followed_and_never_forgotten_for_want_of_an_answer() -> None:
    """Neither Kafka nor a name server that is away lets anybody in."""
    cluster, names = Cluster("one:9092"), Names({"one": ["192.0.2.1"], "two": ["192.0.2.2"]})
    own = OwnAddresses(cluster, [], SystemClock(), names.resolve)
    await own.run_once()
    cluster.brokers = None
    names.clear()
    await own.run_once()
    assert refusal(own, "http://192.0.2.1:9092/")
    cluster.brokers, names["two"] = ("two:9092",), ["192.0.2.2"]
    await own.run_once()
    assert refusal(own, "http://192.0.2.2:9092/")
    assert refusal(own, "http://192.0.2.1:9092/") is None


# --- documents of token issuers ---


@asynccontextmanager
async def issuer(answer: bytes, *, pause_s: float = 0.0) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One that sends this, byte by byte if it pauses between them; its address, and the heads of requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in [answer[n : n + 1] for n in range(len(answer))] if pause_s else [answer]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys", heads


async def test_issuer_that_trickles_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is never silent for long, and never whole: keys of the next issuer would not be read meanwhile."""
    monkeypatch.setattr(outgoing, "_TIMEOUT_S", 0.5)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b" " * 100
    async with issuer(answer, pause_s=0.02) as (url, _):
        with pytest.raises(IssuerAway):
            await outgoing.fetch_document(url)


async def test_document_of_an_issuer_is_not_unpacked() -> None:
    """A few hundred bytes may be a gigabyte."""
    packed = gzip.compress(bytes(10_000_000))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with issuer(head + packed) as (url, heads):
        assert await outgoing.fetch_document(url) == packed
    assert b"accept-encoding: identity" in heads[0].lower()
