"""Which Kafka the brokers are: asked by `doctor`, and by each process that runs.

Kafka names no version anywhere, and no client shows what `ApiVersions` answers, so this asks itself; brokers answer it
before anybody logs in. Source: KIP-511, KIP-584; the levels are Kafka's MetadataVersion.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from bridge.clock import Clock
from bridge.core.errors import StoreError
from bridge.store.message_store import TopicAdmin

_LOG = structlog.get_logger()
_TIMEOUT_S = 5.0
_INTERVAL_MS = 600_000
_AGAIN_MS = 30_000  # while Kafka is away
_MAX_ANSWER = 1_000_000
_MOST_AT_ONCE = 8
_API_VERSIONS, _VERSION = 18, 3
_SUPPORTED, _FINALIZED = 0, 2  # tags of the answer
_METADATA = "metadata.version"
_FIRST_LEVEL_OF = {
    30: "4.3", 28: "4.2", 26: "4.1", 22: "4.0", 21: "3.9", 20: "3.8", 15: "3.7", 12: "3.6", 9: "3.5", 8: "3.4",
    7: "3.3",
}  # fmt: skip
_NEWEST_KNOWN = max(_FIRST_LEVEL_OF)
_OLDEST_GOOD = (3, 8)
_UNTOLD = "names no release: before 3.3, with ZooKeeper, or not Apache Kafka, which are not tried"
_NO_ANSWER = "what comes is no answer of Kafka's; does its listener want TLS?"
_TOO_OLD = "before 3.8 a Kafka transaction can stay in PrepareCommit for ever, and its queue stands still (KAFKA-16352)"

_UPGRADE = "upgrade to Kafka 3.8 or newer, in KRaft mode"
VERSION_REMEDY = f"U{_UPGRADE[1:]}."
Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """What the broker at `address` is. `finalized`: the release whose features are in force, if it is another one.

    `unasked`: why it could not be asked; `is_away`: since nobody takes connections at the address that it gives.
    """

    address: str
    release: str | None = None
    finalized: str | None = None
    unasked: str | None = None
    is_away: bool = False

    @property
    def harm(self) -> str:
        """Why it should be another one; empty if it may stay."""
        if self.unasked is not None:
            return ""
        if self.release is None:
            return _UNTOLD
        return _TOO_OLD if tuple(map(int, self.release.split(" ")[0].split("."))) < _OLDEST_GOOD else ""

    @property
    def found(self) -> str:
        """In words."""
        if self.unasked is not None:
            return f"cannot be {'reached' if self.is_away else 'asked'}: {self.unasked}"
        if self.release is None:
            return _UNTOLD
        if self.harm:
            return f"is Kafka {self.release}: {self.harm}"
        rest = f", with the features of {self.finalized}: its upgrade is not finalized" if self.finalized else ""
        return f"is Kafka {self.release}{rest}"

    def __str__(self) -> str:
        return f"{self.address} {self.found}"


async def ask_versions(addresses: Sequence[str], options: Options) -> list[BrokerVersion]:
    """What these brokers are; `options` are those of the Kafka clients."""
    turns = asyncio.Semaphore(_MOST_AT_ONCE)
    try:
        tls = make_tls(options)
    except (OSError, ValueError) as error:
        return [BrokerVersion(address, unasked=str(error)) for address in addresses]

    async def ask(address: str) -> BrokerVersion:
        async with turns:
            return await ask_version(address, tls)

    return await asyncio.gather(*[ask(address) for address in addresses])


def make_tls(options: Options) -> ssl.SSLContext | None:
    """As the clients use it; None where they speak in clear. A certificate of a key store is not shown.

    Raises OSError and ValueError for files that cannot be used.
    """
    if "ssl" not in str(options.get("security.protocol", "")).lower():
        return None
    given = {name: str(value) for name, value in options.items() if name.startswith(("ssl.", "enable.ssl."))}
    place = given.get("ssl.ca.location")
    is_folder, is_file = place is not None and Path(place).is_dir(), place not in {None, "probe"}
    tls = ssl.create_default_context(
        cafile=place if is_file and not is_folder else None,
        capath=place if is_folder else None,
        cadata=given.get("ssl.ca.pem"),
    )
    tls.check_hostname = given.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if "ssl.certificate.location" in given:
        password = given.get("ssl.key.password", "")  # else it would be asked for at the terminal
        tls.load_cert_chain(given["ssl.certificate.location"], given.get("ssl.key.location"), password)
    return tls


async def ask_version(address: str, tls: ssl.SSLContext | None = None) -> BrokerVersion:
    """What the broker at `host:port` is."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
            try:
                writer.write(make_request())
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                if not 0 < length <= _MAX_ANSWER:
                    return BrokerVersion(address, unasked=_NO_ANSWER)
                answer = await reader.readexactly(length)
            finally:
                writer.transport.abort()
    except asyncio.IncompleteReadError:
        return BrokerVersion(address, unasked=_NO_ANSWER)
    except (OSError, ValueError) as error:
        is_away = isinstance(error, (ConnectionRefusedError, TimeoutError, socket.gaierror))
        return BrokerVersion(address, unasked=str(error) or "no answer", is_away=is_away)
    return read_version(address, answer)


def make_request() -> bytes:
    """ApiVersions version 3, with its length before it."""
    name = b"outbox-bridge"
    head = struct.pack(">hhih", _API_VERSIONS, _VERSION, 1, len(name)) + name + b"\x00"
    body = bytes([len(name) + 1]) + name + b"\x02" + b"1" + b"\x00"
    return struct.pack(">i", len(head) + len(body)) + head + body


def read_version(address: str, answer: bytes) -> BrokerVersion:
    """What the broker says that it can do, and what of it is in force."""
    features = read_features(answer)
    release = name_release(features.get(_SUPPORTED, {}).get(_METADATA))
    finalized = name_release(features.get(_FINALIZED, {}).get(_METADATA))
    is_behind = release is not None and "newer" not in release and finalized != release
    return BrokerVersion(address, release, finalized if is_behind else None)


def read_features(answer: bytes) -> dict[int, dict[str, int]]:
    """By tag the highest level of each feature: supported (0), in force (2); none where it is not understood."""
    reader, features = _Fields(answer), {}
    try:
        reader.skip(4)
        if reader.integer(2) != 0:
            return {}
        for _ in range(reader.unsigned() - 1):
            reader.skip(6)
            reader.skip_tags()
        reader.skip(4)
        for _ in range(reader.unsigned()):
            tag, size = reader.unsigned(), reader.unsigned()
            field = reader.take(size)
            if tag in {_SUPPORTED, _FINALIZED}:
                features[tag] = _read_ranges(_Fields(field), is_highest_first=tag == _FINALIZED)
    except (IndexError, UnicodeDecodeError):
        return {}
    return features


def name_release(level: int | None) -> str | None:
    """The release that brought this metadata level."""
    if level is None or level < min(_FIRST_LEVEL_OF):
        return None
    release = _FIRST_LEVEL_OF[max(first for first in _FIRST_LEVEL_OF if first <= level)]
    return f"{release} or newer" if level > _NEWEST_KNOWN else release


def _read_ranges(reader: "_Fields", *, is_highest_first: bool) -> dict[str, int]:
    features = {}
    for _ in range(reader.unsigned() - 1):
        name = reader.text()
        first, second = reader.integer(2), reader.integer(2)
        features[name] = first if is_highest_first else second
        reader.skip_tags()
    return features


class _Fields:
    """Kafka's flexible encoding. Raises IndexError at the end."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def skip(self, count: int) -> None:
        self.take(count)

    def take(self, count: int) -> bytes:
        taken = self._raw[self._at : self._at + count]
        if len(taken) != count:
            raise IndexError
        self._at += count
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    def text(self) -> str:
        return self.take(self.unsigned() - 1).decode()

    def skip_tags(self) -> None:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.skip(self.unsigned())


class VersionWatch:
    """Looks when the process starts, and every ten minutes: brokers are upgraded one after the other."""

    def __init__(self, admin: TopicAdmin, options: Options, clock: Clock) -> None:
        self._admin = admin
        self._options = options
        self._clock = clock
        self._seen: Sequence[BrokerVersion] = ()

    @property
    def outdated(self) -> str:
        """Which brokers should be another Kafka, and why; empty if none."""
        faults = [str(answer) for answer in self._seen if answer.harm]
        return "; ".join([*faults, _UPGRADE] if faults else [])

    async def run_forever(self) -> None:
        """Logs what has changed."""
        while True:
            await self._clock.sleep_ms(_INTERVAL_MS if await self.run_once() else _AGAIN_MS)

    async def run_once(self) -> bool:
        """Whether Kafka could be asked for its brokers."""
        try:
            cluster = await self._admin.describe_cluster()
        except StoreError:
            return False
        before, self._seen = {answer.found for answer in self._seen}, await ask_versions(cluster.brokers, self._options)
        for found, harm in sorted({(answer.found, answer.harm) for answer in self._seen}):
            if found not in before:
                brokers = sorted(answer.address for answer in self._seen if answer.found == found)
                if harm:
                    _LOG.warning("kafka_version", found=found, brokers=brokers, remedy=VERSION_REMEDY)
                else:
                    _LOG.info("kafka_version", found=found, brokers=brokers)
        return True
