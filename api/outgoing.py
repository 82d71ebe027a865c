"""Calls out of this process: where no check endpoint may be, and the documents of token issuers."""

import asyncio
import socket
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from ipaddress import IPv6Address, ip_address

import httpx2
import structlog

from bridge.clock import Clock
from bridge.core.errors import StoreError
from bridge.service.issuers import IssuerAway
from bridge.store.message_store import TopicAdmin
from checker.endpoint_guard import Place, is_safe, parse_servers

# --- where Kafka, SQL and this process itself listen ---

_LOG = structlog.get_logger()
_REFRESH_MS = 30_000
_LOOK_UP_S = 3.0
_HERE = "this machine"  # has many addresses, and what listens on one of them mostly listens on others too


class OwnAddresses(Container[Place]):
    """(host or address, port): is it one of ours? Names that cannot be looked up keep the addresses they had."""

    def __init__(
        self, admin: TopicAdmin, configured: Iterable[Place], clock: Clock, resolve: Callable[[str, int], Sequence[str]]
    ) -> None:
        self._admin = admin
        self._configured = set(configured)
        self._clock = clock
        self._resolve = resolve
        self._addresses: dict[Place, frozenset[str]] = {}
        self._places: frozenset[Place] = frozenset()

    def __contains__(self, place: object) -> bool:
        if not isinstance(place, tuple):
            return False
        host, port = place
        if not any(port == known for _, known in self._places):
            return False
        return (_key_of(host), port) in self._places

    async def add(self, host: str, port: int) -> None:
        """One more place of ours."""
        self._configured.add((host, port))
        await self._look_up(self._configured)

    async def run_once(self) -> int:
        """Asks Kafka where its brokers are, and name servers for all names; how many places are known."""
        try:
            brokers = (await self._admin.describe_cluster()).brokers
        except StoreError as error:
            _LOG.warning("own_addresses_stale", reason=str(error))
            await self._look_up(self._addresses.keys() | self._configured)
        else:
            await self._look_up(self._configured.union(*[parse_servers(broker) for broker in brokers]))
        return len(self._places)

    async def run_forever(self) -> None:
        """Brokers come and go, and names move."""
        while True:
            await self._clock.sleep_ms(_REFRESH_MS)
            await self.run_once()

    async def _look_up(self, wanted: Collection[Place]) -> None:
        places = list(wanted)
        found = await asyncio.gather(*[self._find(host, port) for host, port in places])
        self._addresses = dict(zip(places, found, strict=True))
        self._places = frozenset(
            (_key_of(name), port) for (host, port), texts in self._addresses.items() for name in (host, *texts)
        )

    async def _find(self, host: str, port: int) -> frozenset[str]:
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                return frozenset(await asyncio.to_thread(partial(self._resolve, host, port)))
        except (OSError, UnicodeError, TimeoutError):
            return self._addresses.get((host, port), frozenset())


def _key_of(host: str) -> str:
    """One word for all addresses of this machine; names in lower case and without the root's dot."""
    try:
        address = ip_address(host)
    except ValueError:
        name = host.lower().removesuffix(".")
        return _HERE if name.rpartition(".")[2] == "localhost" else name
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return _HERE if address.is_loopback or address.is_unspecified or _is_here(str(address)) else str(address)


def _is_here(address: str) -> bool:
    """Only an address of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


# --- documents of token issuers, read over HTTPS ---

_TIMEOUT_S = 5.0
_MOST_BYTES = 256 * 1024
_WANTED = {"Accept": "application/json", "Accept-Encoding": "identity"}  # what is packed may be any size


async def fetch_document(url: str) -> bytes:
    """At most 256 KiB as they come, all of it in 5 s, without following a redirect. Raises IssuerAway."""
    if not is_safe(url):
        raise IssuerAway(f"{url[:200]} is not https")
    found = bytearray()
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),  # of the whole: one that sends a byte now and then would hold up all others
            httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client,
            client.stream("GET", url, headers=_WANTED) as answer,
        ):
            if answer.status_code != httpx2.codes.OK:
                raise IssuerAway(f"{url} answered {answer.status_code}")
            async for piece in answer.aiter_raw():
                found += piece
                if len(found) > _MOST_BYTES:
                    raise IssuerAway(f"{url} answered more than {_MOST_BYTES} bytes")
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
        raise IssuerAway(f"{url}: {error or type(error).__name__}") from error
    return bytes(found)
