"""api.kafka_version: the release of a broker from what it says, and whether it should be another one."""

import asyncio
import ssl
import struct
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from api.kafka_version import (
    BrokerVersion,
    VersionWatch,
    ask_version,
    make_request,
    make_tls,
    name_release,
    read_features,
    read_version,
)
from bridge.clock import SystemClock
from bridge.core.errors import StoreTimeout
from bridge.store.message_store import ClusterDescription, TopicAdmin


def field(tag: int, first: int, second: int) -> bytes:
    """A tagged list of one feature."""
    name = b"metadata.version"
    ranges = b"\x02" + bytes([len(name) + 1]) + name + struct.pack(">hh", first, second) + b"\x00"
    return bytes([tag, len(ranges)]) + ranges


def answer(level: int, finalized: int | None = None) -> bytes:
    """Correlation id, no error, one API, no throttle, supported features, epoch and finalized features."""
    apis = b"\x02" + struct.pack(">hhh", 18, 0, 4) + b"\x00"
    epoch = b"\x01\x08" + struct.pack(">q", 7)
    tags = field(0, 7, level) + epoch + field(2, level if finalized is None else finalized, 7)
    return struct.pack(">ih", 1, 0) + apis + struct.pack(">i", 0) + b"\x03" + tags


def test_request_carries_its_length() -> None:
    """ApiVersions, version 3."""
    request = make_request()
    assert struct.unpack(">i", request[:4])[0] == len(request) - 4
    assert struct.unpack(">hh", request[4:8]) == (18, 3)


def test_features_are_read() -> None:
    """Behind the list of APIs: what can be, and what is in force."""
    assert read_features(answer(30, 19)) == {0: {"metadata.version": 30}, 2: {"metadata.version": 19}}


@pytest.mark.parametrize("length", range(40))
def test_broken_answer_tells_nothing(length: int) -> None:
    """Cut off anywhere: no version, and no exception."""
    assert read_features(answer(30)[:length]) == {}


@pytest.mark.parametrize(
    ("level", "release"),
    [(None, None), (3, None), (7, "3.3"), (14, "3.6"), (19, "3.7"), (20, "3.8"), (21, "3.9"), (25, "4.0"), (27, "4.1"),
     (29, "4.2"), (30, "4.3"), (34, "4.3 or newer")],
)  # fmt: skip
def test_level_names_its_release(level: int | None, release: str | None) -> None:
    """As brokers of these releases answered."""
    assert name_release(level) == release


@pytest.mark.parametrize(
    ("version", "found", "harm"),
    [
        (read_version("k:1", answer(30)), "k:1 is Kafka 4.3", ""),
        (read_version("k:1", answer(30, 19)), "k:1 is Kafka 4.3, with the features of 3.7: ", ""),
        (read_version("k:1", answer(34)), "k:1 is Kafka 4.3 or newer", ""),
        (read_version("k:1", answer(20)), "k:1 is Kafka 3.8", ""),
        (read_version("k:1", answer(19)), "k:1 is Kafka 3.7: before 3.8 ", "KAFKA-16352"),
        (read_version("k:1", b""), "k:1 names no release: ", "ZooKeeper"),
        (BrokerVersion("k:1", unasked="refused"), "k:1 cannot be asked: refused", ""),
    ],
)
def test_fault_has_its_reason(version: BrokerVersion, found: str, harm: str) -> None:
    """Old brokers and unknown ones are named; one that cannot be asked, or is newer, is no fault."""
    assert str(version).startswith(found)
    assert harm in version.harm
    assert bool(version.harm) == bool(harm)


class _Cluster(TopicAdmin):
    """Brokers that answer what they are told to. As an admin it names them, or has nobody to ask."""

    def __init__(self) -> None:
        self.brokers: list[str] | None = None
        self.answer = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(make_request()))
        writer.write(struct.pack(">i", len(self.answer)) + self.answer)
        writer.close()

    async def describe_cluster(self) -> ClusterDescription:
        if self.brokers is None:
            raise StoreTimeout("nobody")
        return ClusterDescription("c", self.brokers)


async def test_watch_tells_what_has_changed() -> None:
    """A line for all brokers of a release, another one after the upgrade; the fault is shown until then."""
    cluster = _Cluster()
    watch = VersionWatch(cluster, {}, SystemClock())
    async with AsyncExitStack() as stack:
        assert not await watch.run_once()
        assert watch.outdated == ""
        servers = [
            await stack.enter_async_context(await asyncio.start_server(cluster.serve, "127.0.0.1", 0)) for _ in "ab"
        ]
        cluster.brokers = sorted(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers)
        told: list[list[Any]] = []
        for level in (19, 19, 30):
            cluster.answer = answer(level)
            with capture_logs() as lines:
                assert await watch.run_once()
            told.append([(line["log_level"], line["brokers"], bool(line.get("remedy"))) for line in lines])
            assert ("KAFKA-16352" in watch.outdated) == (level == 19)
    assert told == [[("warning", cluster.brokers, True)], [], [("info", cluster.brokers, False)]]


async def test_nobody_there_is_said() -> None:
    """And is no exception."""
    assert (await ask_version("127.0.0.1:1")).unasked


def test_tls_is_that_of_the_clients(tmp_path: Path) -> None:
    """Files, and what is switched off; a missing file is an error that says so."""
    authority = trustme.CA()
    ca, cert, key = tmp_path / "ca", tmp_path / "cert", tmp_path / "key"
    authority.cert_pem.write_to_path(ca)
    issued = authority.issue_cert("client")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    files = {"ssl.ca.location": str(ca), "ssl.certificate.location": str(cert), "ssl.key.location": str(key)}
    tls = make_tls({"security.protocol": "SASL_SSL", **files})
    assert tls is not None
    assert (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)
    lax = make_tls({"security.protocol": "ssl", "enable.ssl.certificate.verification": False})
    assert lax is not None
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_NONE)
    assert make_tls({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path)}) is not None
    assert make_tls({"security.protocol": "SSL", "ssl.ca.location": "probe"}) is not None
    assert make_tls({"security.protocol": "SASL_PLAINTEXT", **files}) is None
    with pytest.raises(OSError, match="No such file"):
        make_tls({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "none")})
