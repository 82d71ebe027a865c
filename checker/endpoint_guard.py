"""May this URL, this address be called? Whose are those of settings? Pure; names are resolved by the caller.

The public internet over https on two ports, and whatever `callbacks.allow_networks` names. A URL is read by a
grammar stricter than any client's, so that no two parsers can disagree about its host.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from bridge.core.errors import ConfigError

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
Place = tuple[str, int]  # host or address, and port

MAX_URL_LENGTH = 2_000
ALLOWED_PORTS = frozenset({443, 8443})
_OWN = "Kafka, SQL or the bridge itself listens there"
_DEFAULT_PORTS = {"http": 80, "https": 443}

# visible ASCII without what separates authority, fragment or paths elsewhere: " # < > @ \ ^ ` { | }
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>/[!$-;=?A-\[\]_a-z~]*)?"
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")  # such a last label makes a host an address. Source: WHATWG URL

_PUBLIC_V6 = IPv6Network("2000::/3")
_DENIED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
        "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
    )
)  # fmt: skip
_DENIED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # Teredo, ORCHID, benchmarking, anycast services
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)


@dataclass(frozen=True, slots=True)
class CallbackPolicy:
    """`allow_networks`: also http and any port there. `denied`: (host or address, port), 0 for all, not even there."""

    allow_networks: tuple[Network, ...] = ()
    denied: Container[Place] = frozenset()


class CheckedUrl(NamedTuple):
    """A URL that may be called if its addresses may. `url` is the text as given."""

    url: str
    scheme: str
    host: str
    port: int

    @property
    def shown(self) -> str:
        """For logs and records: without the query, which may hold secrets."""
        return self.url.partition("?")[0]


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks of a setting. Raises ConfigError."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigError(f"callbacks.allow_networks: {error}") from error


def check_url(url: str, policy: CallbackPolicy) -> CheckedUrl | str:
    """The URL taken apart, or why it is refused; says nothing of what its name resolves to."""
    match = _URL.fullmatch(url) if len(url) <= MAX_URL_LENGTH else None
    if match is None:
        return "not a plain http or https URL"
    scheme, host = match["scheme"], match["host"].lower()
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65_535:
        return "no such port"
    if host.startswith("[") or (_NUMERIC.fullmatch(host.removesuffix(".").rpartition(".")[2]) is not None):
        return _check_literal(CheckedUrl(url, scheme, host.strip("[]"), port), policy)
    return _check_name(CheckedUrl(url, scheme, host, port), policy)


def check_addresses(checked: CheckedUrl, addresses: Iterable[str], policy: CallbackPolicy) -> str | None:
    """Why the URL must not be called at what its host resolves to; one denied address is enough. None: it may."""
    found = list(addresses)
    if not found:
        return "no address"
    is_public = checked.scheme == "https" and checked.port in ALLOWED_PORTS
    for text in found:
        if not is_allowed(text, checked.port, policy, is_public=is_public):
            return "address not allowed"
    return None


def is_allowed(text: str, port: int, policy: CallbackPolicy, *, is_public: bool) -> bool:
    """Whether a connection to the address may be made; `is_public`: with scheme and port of public endpoints."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    if (str(address), port) in policy.denied or (str(address), 0) in policy.denied:
        return False
    return _is_within(address, policy.allow_networks) or (is_public and is_public_address(address))


def is_public_address(address: Address) -> bool:
    """Whether the address belongs to the public internet and to no tunnel, translator or cloud's own service."""
    if isinstance(address, IPv4Address):
        return not _is_within(address, _DENIED_V4)
    return address in _PUBLIC_V6 and not _is_within(address, _DENIED_V6)


def _check_name(checked: CheckedUrl, policy: CallbackPolicy) -> CheckedUrl | str:
    if not all(_LABEL.fullmatch(label) for label in checked.host.removesuffix(".").split(".")):
        return "not a host name"
    if (checked.host, checked.port) in policy.denied:
        return _OWN
    if not policy.allow_networks and (checked.scheme != "https" or checked.port not in ALLOWED_PORTS):
        return "only https on ports 443 and 8443"
    return checked


def _check_literal(checked: CheckedUrl, policy: CallbackPolicy) -> CheckedUrl | str:
    """An address stands for a name only in networks that are named, and only in its canonical form."""
    try:
        address = ip_address(checked.host)
    except ValueError:
        return "not a host name"
    if str(address) != checked.host or not _is_within(address, policy.allow_networks):
        return "an address instead of a name"
    if not is_allowed(checked.host, checked.port, policy, is_public=False):
        return _OWN
    return checked


def _is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


# --- addresses of settings ---

_KAFKA_PORT = 9092
_SERVER = re.compile(r"(?:[A-Za-z_]+://)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^/]+?))(?::(?P<port>\d+))?")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_safe(url: str) -> bool:
    """Whether what comes from there can be believed: over TLS, or from this machine."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        return bool(parts.hostname) and (parts.scheme == "https" or is_local)
    except ValueError:
        return False


def parse_servers(text: str) -> list[Place]:
    """Of `host:port,PLAINTEXT://host,[::1]:9093`; Kafka's port where none is named."""
    found = [_SERVER.fullmatch(server.strip()) for server in text.split(",")]
    return [(match["six"] or match["host"], int(match["port"] or _KAFKA_PORT)) for match in found if match]
