"""Prometheus' alerts on a bridge that runs: each is caused, and fires; on a sound bridge none does."""

import json
import re
import secrets
import sqlite3
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, check_endpoint, create_topics, wait_until
from tests.support.broker import BrokerFactory
from tests.support.promtool import ALERTS, Scrape, find_firing, find_promtool, judge_series, parse_scrape

_DASHBOARD = Path("docker/helm/files/dashboard.json").absolute()
_NEVER = {"transaction_timeout_seconds": 86_400, "max_lifetime_seconds": 172_800}
_SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1}


class Watch:
    """A bridge of two processes, and what Prometheus would say of it."""

    def __init__(self, bridge: Bridge, folder: Path, **processes: BridgeProcess) -> None:
        self.bridge = bridge
        self.api = next(iter(processes.values()))
        self._folder = folder
        self._processes = processes

    def scrape(self) -> Scrape:
        """What each process shows now."""
        return parse_scrape(time.monotonic(), {name: _read(process) for name, process in self._processes.items()})

    def firing(self) -> set[str]:
        """The alerts that fire if it goes on like this."""
        before = self.scrape()
        time.sleep(2.5)
        return find_firing(before, self.scrape(), self._folder)

    def wait_firing(self, *alerts: str) -> None:
        """Until just these fire; before, they may still be on their way."""
        found: list[set[str]] = []

        def is_so() -> bool:
            found.append(self.firing())
            return found[-1] == set(alerts)

        try:
            wait_until(is_so, 60, f"{', '.join(alerts) or 'no alert'}")
        except AssertionError:
            pytest.fail(f"wanted {sorted(alerts)}, found {[sorted(one) for one in found[-3:]]}")

    def put_group(self, name: str, check: dict[str, Any], *urls: str) -> None:
        """A producer group."""
        body = {"endpoints": [{"url": url} for url in urls], "check": check}
        assert self.api.http.put(f"/v1/producer-groups/{name}", json=body).status_code in {200, 201}
        time.sleep(1.2)  # as long as the settler may not have heard of it

    def prepare(self, group: str, topic: str) -> str:
        """A transaction."""
        body = {"producer_group": group, "messages": [{"topic": topic, "key": "k", "value": "v"}]}
        return str(self.api.post("/v1/transactions", body).json()["transaction_id"])


def _read(process: BridgeProcess) -> str | None:
    try:
        return process.get("/metrics").text
    except httpx2.HTTPError:
        return None


@pytest.mark.timeout(600)
def test_each_alert_fires_where_it_is_caused(kafka: str, tmp_path: Path) -> None:
    """And no other one: an alert for everything wakes people for nothing."""
    find_promtool()
    keys = f"k1:{secrets.token_urlsafe(32)}"
    bridge = Bridge.create(kafka, tmp_path, OUTBOX_BRIDGE_SECURITY__KEYS=keys)
    topic = f"{bridge.prefix}orders"
    create_topics(kafka, {topic: 1, f"{topic}-gone": 1})
    with bridge.serve("api") as api, bridge.serve("settler,projector") as engine:
        watch = Watch(bridge, tmp_path, api=api, engine=engine)
        watch.put_group("sound", _NEVER)
        for _ in range(5):
            api.post(f"/v1/transactions/{watch.prepare('sound', topic)}/commit")
        watch.wait_firing()
        _check_dashboard(watch.scrape())

        old = watch.prepare("sound", topic)
        watch.wait_firing("OutboxBridgeTransactionsOld")
        api.post(f"/v1/transactions/{old}/rollback")

        watch.put_group("silent", {**_SOON, "max_checks": 50}, "http://127.0.0.1:9/checks")
        silent = watch.prepare("silent", topic)
        watch.wait_firing("OutboxBridgeTransactionsOld", "OutboxBridgeGroupDoesNotAnswer")
        api.post(f"/v1/transactions/{silent}/rollback")
        watch.wait_firing()

        with check_endpoint("UNKNOWN") as endpoint:
            watch.put_group("torn", _SOON, endpoint.url)
            parked = watch.prepare("torn", topic)
            wait_until(lambda: api.get(f"/v1/transactions/{parked}").json()["state"] == "PARKED", name="parked")
        watch.wait_firing("OutboxBridgeTransactionsParked")
        api.post(f"/v1/transactions/{parked}/rollback")

        blocked = watch.prepare("sound", f"{topic}-gone")
        admin = AdminClient({"bootstrap.servers": kafka})
        for future in admin.delete_topics([f"{topic}-gone"]).values():
            future.result(30)
        api.post(f"/v1/transactions/{blocked}/commit")
        watch.wait_firing("OutboxBridgeTransactionsBlocked")
        create_topics(kafka, {f"{topic}-gone": 1})
        watch.wait_firing()

        _hang(watch, topic)
        _damage_a_secret(watch)
        _spoil_journal(watch, topic)
        _foul(watch)
        engine.kill()
        watch.prepare("sound", topic)
        watch.wait_firing(
            "OutboxBridgeDown", "OutboxBridgeSettlingBehind", "OutboxBridgeProjectionBehind",
            "OutboxBridgeNobodyProjects", "OutboxBridgeAuditBroken",
        )  # fmt: skip


@pytest.mark.timeout(900)
def test_alerts_of_what_leaves_the_bridge_fire_where_they_are_caused(kafka: str, tmp_path: Path) -> None:
    """A canary without its topic, and a receiver of webhooks that is not there; neither, once both are."""
    find_promtool()
    canary, port = f"canary-{secrets.token_hex(4)}", choose_free_port()
    secret = f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"
    receiver = {"name": "pager", "url": f"http://127.0.0.1:{port}/bridge", "secret": secret}
    bridge = Bridge.create(
        kafka, tmp_path, OUTBOX_BRIDGE_WEBHOOKS=json.dumps([receiver]),
        OUTBOX_BRIDGE_CANARY__TOPIC=canary, OUTBOX_BRIDGE_CANARY__INTERVAL_SECONDS="1",
    )  # fmt: skip
    topic = f"{bridge.prefix}orders"
    create_topics(kafka, {topic: 1})
    with bridge.serve() as api, check_endpoint("UNKNOWN") as endpoint:
        watch = Watch(bridge, tmp_path, api=api)
        watch.put_group("torn", _SOON, endpoint.url)
        watch.prepare("torn", topic)
        watch.wait_firing("OutboxBridgeTransactionsParked", "OutboxBridgeCanaryLost", "OutboxBridgeWebhookFails")
        create_topics(kafka, {canary: 1})
        with receiving(port):
            watch.wait_firing("OutboxBridgeTransactionsParked")
            shown = api.get("/metrics").text
    assert 'canary_runs_total{word="arrived"}' in shown


@pytest.mark.timeout(600)
def test_alert_of_a_bridge_that_kafka_does_not_answer(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """Its processes answer, and show no lag that could be too long."""
    find_promtool()
    broker = broker_factory()
    bridge = Bridge.create(broker.bootstrap, tmp_path)
    with bridge.serve() as process:
        watch = Watch(bridge, tmp_path, process=process)
        watch.wait_firing()
        broker.pause()
        watch.wait_firing("OutboxBridgeCutOff")
        broker.resume()
        watch.wait_firing()


@pytest.mark.parametrize(
    ("answered", "oldest_s", "fires"),
    [("0x90", "0+60x90", True), ("0x80 1x10", "0+60x90", False), ("0x90", "2x90", False)],
)
def test_group_that_is_asked_each_half_hour_in_vain(tmp_path: Path, answered: str, oldest_s: str, fires: bool) -> None:
    """Between two rounds there are minutes without any: no alert came before a transaction was an hour old."""
    series = {
        "checks_unanswered_total": "1x29 2x29 3x29",
        "checks_answered_total": answered,
        "oldest_pending_seconds": oldest_s,
    }
    lines = [
        {"series": f'outbox_bridge_group_{name}{{producer_group="slow"}}', "values": values}
        for name, values in series.items()
    ]
    assert ("OutboxBridgeGroupDoesNotAnswer" in judge_series(lines, tmp_path)) is fires


@contextmanager
def receiving(port: int) -> Iterator[None]:
    """A receiver that takes whatever comes."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    with ThreadingHTTPServer(("127.0.0.1", port), Taking) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def _hang(watch: Watch, topic: str) -> None:
    """Some other application's Kafka transaction stays open; afterwards it is ended."""
    alien = Producer({"bootstrap.servers": watch.bridge.kafka, "transactional.id": f"{topic}-alien"})
    alien.init_transactions(30)
    alien.begin_transaction()
    alien.produce(topic, b"open", partition=0)
    assert alien.flush(30) == 0
    watch.api.post(f"/v1/transactions/{watch.prepare('sound', topic)}/commit")
    watch.wait_firing("OutboxBridgeKafkaTransactionHangs")
    alien.abort_transaction(30)
    watch.wait_firing()


def _damage_a_secret(watch: Watch) -> None:
    """A row is changed in the database; a new secret takes its place."""
    with sqlite3.connect(watch.bridge.directory / "bridge.db", timeout=10) as connection:
        connection.execute("UPDATE secrets SET secret = secret || 'AAAA' WHERE producer_group = 'sound'")
        connection.execute("UPDATE directory_version SET version = version + 1")
    watch.wait_firing("OutboxBridgeSecretsDamaged")
    assert "signing secret of group sound cannot be" in watch.api.get("/v1/producer-groups/sound").text
    assert watch.api.post("/v1/producer-groups/sound/rotate-secret").status_code == 200
    watch.wait_firing()


def _spoil_journal(watch: Watch, topic: str) -> None:
    """Its retention is changed, and set back; its records are deleted, among them a pending half message."""
    admin = AdminClient({"bootstrap.servers": watch.bridge.kafka})

    def alter(retention_ms: int) -> None:
        entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ConfigResource.Type.TOPIC, watch.bridge.half_topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([changed]).values():
            future.result(30)

    alter(3_600_000)
    watch.wait_firing("OutboxBridgeTopicsUnfit")
    alter(14 * 86_400_000)
    watch.wait_firing()

    lost = watch.prepare("sound", topic)
    place = watch.api.get(f"/v1/transactions/{lost}").json()
    begin = TopicPartition(watch.bridge.half_topic, place["queue_id"], place["queue_offset"] + 1)
    for future in admin.delete_records([begin]).values():
        future.result(30)
    watch.wait_firing("OutboxBridgeBodiesLost", "OutboxBridgeTransactionsOld")
    assert lost in watch.api.get("/readyz?verbose").text
    watch.api.post(f"/v1/transactions/{lost}/rollback")
    watch.wait_firing()


def _foul(watch: Watch) -> None:
    """What somebody may do who may write to the internal topics, or to the database."""
    bridge = watch.bridge
    producer = Producer({"bootstrap.servers": bridge.kafka})
    before = watch.scrape()
    unknown = b"KIND\x01H\x02UNIQ_KEY\x0100" + b"7" * 25 + b"0\x02V\x019\x02"
    producer.produce(bridge.half_topic, b"no record of ours", partition=0)
    producer.produce(bridge.op_topic, b"{}", key=b"00" + b"7" * 25 + b"0", partition=0)
    producer.produce(bridge.half_topic, b"", partition=1, headers=[("properties", unknown)])
    assert producer.flush(30) == 0
    wanted = {"OutboxBridgeRecordsQuarantined", "OutboxBridgeForgedRecords", "OutboxBridgeQueueHalted"}
    found: set[str] = set()

    def is_found() -> bool:
        found.update(find_firing(before, watch.scrape(), bridge.directory))
        return wanted <= found

    try:
        wait_until(is_found, 60, "fouled topics are noticed")
    except AssertionError:
        pytest.fail(f"wanted {sorted(wanted)}, found {sorted(found)}")
    wait_until(lambda: "audit_unproven_entries 0.0" in watch.api.get("/metrics").text, 60, "a head is appended")
    with sqlite3.connect(bridge.directory / "bridge.db", timeout=10) as connection:
        connection.execute("DELETE FROM audit_links WHERE number > 1")
        connection.execute("DELETE FROM audit WHERE id > 1")
    wait_until(lambda: "audit_chain_broken 1.0" in watch.api.get("/metrics").text, 60, "the process says so")


def _check_dashboard(scrape: Scrape) -> None:
    """Each metric that the dashboard, or an alert, names is one that a running bridge shows."""
    shown = {name.partition("{")[0] for name in scrape.series}
    for file in (_DASHBOARD, ALERTS):
        named = set(re.findall(r"\boutbox_bridge_\w+", file.read_text()))
        assert named - shown <= _SHOWN_LATER, file


# These have labels that there are only once somebody was asked, or where there is a certificate, a canary or a webhook.
_SHOWN_LATER = {"outbox_bridge_group_checks_answered_total", "outbox_bridge_group_checks_unanswered_total",
                "outbox_bridge_group_check_call_seconds_bucket",
                "outbox_bridge_canary_runs_total", "outbox_bridge_webhook_events_total",
                "outbox_bridge_certificate_end_seconds"}  # fmt: skip


def test_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    """Prometheus itself parses them."""
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) >= 10
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "panels.json"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}).replace("$__rate_interval", "5m"))
    subprocess.run([find_promtool(), "check", "rules", str(file)], check=True, capture_output=True, timeout=60)
