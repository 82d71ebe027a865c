"""A bridge that speaks TLS and wants certificates of its clients: SDK, relay, commands and scrapers reach it."""

import json
import os
import re
import secrets
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

import outbox
from api.cli.connect import call
from bridge.broker.ports import choose_free_port
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from outbox.hand_over import HttpHandOver
from outbox.relay import RelayConfig
from tests.support.authority import Authority
from tests.support.bridge_process import Bridge, create_topics, read_committed, wait_until
from tests.support.cli_process import run_command
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.promtool import find_firing, parse_scrape
from tests.support.sdk_twins import Session
from tests.support.user_database import UserDatabase

GROUP = "orders"


class Secured(NamedTuple):
    """A bridge's address, and the environment of who may call it."""

    url: str
    metrics_url: str
    settings: Mapping[str, str]
    authority: Authority
    topic: str
    kafka: str


@pytest.fixture(scope="module")
def secured(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, topic = Authority(folder), f"secured-{secrets.token_hex(4)}"
    create_topics(kafka, {topic: 1})
    shown, own = authority.issue(), authority.issue("orders.example", at="orders")
    key, metrics_port = make_key_text(os.urandom(RANDOM_BYTES)), choose_free_port()
    bridge = Bridge.create(
        kafka,
        folder,
        OUTBOX_BRIDGE_INSECURE_NO_AUTH="false",
        OUTBOX_BRIDGE_AUTH__ADMIN_KEY=key,
        OUTBOX_BRIDGE_HTTP__TLS__CERT=str(shown.cert),
        OUTBOX_BRIDGE_HTTP__TLS__KEY=str(shown.key),
        OUTBOX_BRIDGE_HTTP__TLS__CLIENT_CA=str(authority.ca_file),
        OUTBOX_BRIDGE_HTTP__TLS__CLIENT_AUTH="required",
        OUTBOX_BRIDGE_HTTP__METRICS_PORT=str(metrics_port),
        OUTBOX_BRIDGE_AUTH__CERTIFICATES=json.dumps({"DNS:orders.example": "shop"}),
    )
    metrics_url = f"http://127.0.0.1:{metrics_port}"
    with bridge.start() as process:
        wait_until(lambda: status_of(f"{metrics_url}/readyz") == 200, 60, f"readiness; see {process.log}")
        url = f"https://localhost:{process.port}"
        settings = {
            "OUTBOX_BRIDGE_URL": url,
            "OUTBOX_BRIDGE_KEY": key,
            "OUTBOX_BRIDGE_CA_FILE": str(authority.ca_file),
            "OUTBOX_BRIDGE_CLIENT_CERT_FILE": str(own.cert),
            "OUTBOX_BRIDGE_CLIENT_KEY_FILE": str(own.key),
        }
        yield Secured(url, metrics_url, settings, authority, topic, kafka)


def status_of(url: str) -> int | None:
    """What a look in clear is answered with."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Of a service."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield


def test_sdk_is_told_by_its_environment(secured: Secured) -> None:
    """Nothing in the code of the service says that TLS is spoken."""
    with (
        environment(secured.settings),
        outbox.Bridge(secured.url, GROUP, record=Session()) as face,
        face.transaction(Session()) as transaction,
    ):
        transaction.send(secured.topic, key="sdk", value="sent")
    assert [r.value for r in read_committed(secured.kafka, [secured.topic]) if r.key == b"sdk"] == [b"sent"]


async def test_pull_worker_of_a_loop_is_told_in_its_settings(secured: Secured, tmp_path: Path) -> None:
    """They count before the environment."""
    done = run_command("group", "put", "pulled", "--check", "mode=pull", folder=tmp_path, settings=secured.settings)
    assert done.returncode == 0, done.stderr
    http = outbox.HttpConfig(
        key=secured.settings["OUTBOX_BRIDGE_KEY"],
        ca_file=secured.settings["OUTBOX_BRIDGE_CA_FILE"],
        client_cert_file=secured.settings["OUTBOX_BRIDGE_CLIENT_CERT_FILE"],
        client_key_file=secured.settings["OUTBOX_BRIDGE_CLIENT_KEY_FILE"],
    )
    async with outbox.AsyncBridge(secured.url, "pulled", config=outbox.BridgeConfig(http=http)) as face:
        worker = face.pull_worker(lambda check: outbox.Resolution.UNKNOWN)
        assert (await worker.run_once()).claimed == 0


def test_relay_is_told_by_its_environment(secured: Secured, tmp_path: Path) -> None:
    """Like the SDK."""
    world = OutboxWorld(UserDatabase("sqlite", f"sqlite:///{tmp_path / 'shop.db'}", ""))
    world.enqueue(Sent(secured.topic, b"row", b"sent"))
    with environment(secured.settings), closing(HttpHandOver(secured.url, GROUP)) as hand_over:
        relay = world.relay(hand_over, RelayConfig(min_delay_ms=1, max_delay_ms=1))
        wait_until(lambda: relay.run_once() and world.count()[0] == 0, name="rows handed over")
    assert [r.value for r in read_committed(secured.kafka, [secured.topic]) if r.key == b"row"] == [b"sent"]


def test_commands_are_told_by_their_environment(secured: Secured, tmp_path: Path) -> None:
    """And told what is missing."""
    settings = dict(secured.settings)
    done = run_command("tx", "list", "-o", "json", folder=tmp_path, settings=settings)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)
    done = run_command("tx", "list", folder=tmp_path, settings={**settings, "OUTBOX_BRIDGE_CA_FILE": ""})
    assert (done.returncode != 0, "OUTBOX_BRIDGE_CA_FILE" in done.stderr) == (True, True), done.stderr
    lost = {**settings, "OUTBOX_BRIDGE_CA_FILE": str(tmp_path / "lost.pem")}
    done = run_command("tx", "list", folder=tmp_path, settings=lost)
    assert (done.returncode, f"ca_file {tmp_path / 'lost.pem'}" in done.stderr) == (2, True), done.stderr
    unknown = {**settings, "OUTBOX_BRIDGE_CLIENT_CERT_FILE": "", "OUTBOX_BRIDGE_CLIENT_KEY_FILE": ""}
    done = run_command("tx", "list", folder=tmp_path, settings=unknown)
    assert (done.returncode != 0, "CLIENT_CERT_FILE" in done.stderr) == (True, True), done.stderr


def test_certificate_is_a_credential_of_its_own(secured: Secured, tmp_path: Path) -> None:
    """Whoever has a listed name needs no key; what it may do is granted, and what it does is in its name."""
    keyless = {name: value for name, value in secured.settings.items() if name != "OUTBOX_BRIDGE_KEY"}

    def run(*arguments: str, settings: Mapping[str, str]) -> "tuple[int, str, str]":
        done = run_command(*arguments, folder=tmp_path, settings=settings)
        return done.returncode, done.stdout, done.stderr

    code, _, errors = run("tx", "list", settings=keyless)
    assert (code != 0, "shop" in errors or "read" in errors) == (True, True), errors
    grants = ("--producer", f"{GROUP}:{secured.topic}", "--allow", "read,admin:*")
    code, _, errors = run("key", "grant", "shop", *grants, settings=secured.settings)
    assert code == 0, errors
    with (
        environment({**keyless, "OUTBOX_BRIDGE_KEY": ""}),
        outbox.Bridge(secured.url, GROUP, record=Session()) as face,
        face.transaction(Session()) as transaction,
    ):
        transaction.send(secured.topic, key="keyless", value="sent")
    assert [r.value for r in read_committed(secured.kafka, [secured.topic]) if r.key == b"keyless"] == [b"sent"]
    code, _, errors = run("group", "put", "of-shop", settings=keyless)
    assert code == 0, errors
    with environment(secured.settings):
        entries = call(secured.url, "GET", "/v1/audit").members["entries"]
    assert [entry["actor"] for entry in entries if entry["target"] == "of-shop"] == ["shop/cert@127.0.0.1"]


def test_renewed_certificate_is_shown_by_the_process_that_runs(secured: Secured, tmp_path: Path) -> None:
    """With its end among the metrics; and the examination of the bridge tells how it stands with its certificates."""

    def read_serial() -> str:
        with (
            socket.create_connection(("localhost", urlsplit(secured.url).port or 0)) as plain,
            make_tls(secured).wrap_socket(plain, server_hostname="localhost") as client,
        ):
            shown = client.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])

    first = read_serial()
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    secured.authority.issue(not_after=end)
    wait_until(lambda: read_serial() != first, 20, "the new certificate")
    with urllib.request.urlopen(f"{secured.metrics_url}/metrics", timeout=20) as answer:
        shown = answer.read().decode()
    told_s = float(re.findall(r"(?m)^outbox_bridge_certificate_end_seconds (.*)$", shown)[0])
    assert told_s == end.timestamp()
    done = run_command("doctor", "-o", "json", folder=tmp_path, settings=secured.settings)
    told = {row["what"]: row["verdict"] for row in json.loads(done.stdout)}
    assert told["bridge certificates"] == "ok", done.stdout
    scrapes = [parse_scrape(at_s, {"bridge": shown}) for at_s in (0, 60)]
    assert "OutboxBridgeCertificateEnds" in find_firing(*scrapes, tmp_path)


def make_tls(secured: Secured) -> ssl.SSLContext:
    """A client's."""
    tls = ssl.create_default_context(cafile=secured.authority.ca_file)
    tls.load_cert_chain(*[secured.settings[f"OUTBOX_BRIDGE_CLIENT_{name}_FILE"] for name in ("CERT", "KEY")])
    return tls


def test_scrapers_need_neither_key_nor_certificate(secured: Secured) -> None:
    """On the port of their own; the other one has no metrics."""
    found = {path: status_of(secured.metrics_url + path) for path in ("/metrics", "/readyz?verbose", "/v1/stats")}
    assert list(found.values()) == [200, 200, 404]
    asked = urllib.request.Request(f"{secured.url}/metrics")
    asked.add_header("Authorization", f"Bearer {secured.settings['OUTBOX_BRIDGE_KEY']}")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(asked, context=make_tls(secured), timeout=20)


@pytest.mark.parametrize(("host", "is_told"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_process_that_others_reach_in_clear_says_so(tmp_path: Path, host: str, is_told: bool) -> None:
    """Before anything else; here there is nothing else, since there is no database."""
    done = run_command("serve", "--host", host, "--port", str(choose_free_port()), folder=tmp_path)
    assert "database" in done.stderr
    assert ("http_not_encrypted" in done.stdout + done.stderr) is is_told
