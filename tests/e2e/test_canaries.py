"""Canaries: secrets and contents that a whole bridge is given, and that nothing which it tells may hold.

Looked through are answers, logs, metrics, databases, commands, reports, errors of the SDK, and what is left of a crash.
Not looked through: Kafka's own files, where messages belong, and the answers that show a new key or secret once.
"""

import json
import logging
import os
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import outbox
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from outbox import Message
from outbox.client.config import BridgeConfig, HttpConfig
from tests.support.bridge_process import (
    Bridge,
    BridgeProcess,
    CheckEndpoint,
    check_endpoint,
    create_topics,
    read_committed,
    wait_until,
)
from tests.support.cli_process import run_command

pytestmark = pytest.mark.timeout(400)
TOPIC, GROUP, NOWHERE = "canaries.orders", "canary-shop", "127.0.0.1:1"
VALUE, HEADER, TOKEN, BODY = "canary-of-a-value", "canary-of-a-header", "canary-of-a-url", "canary-of-an-answer"
PASSWORD, KAFKA_PASSWORD = "canary-of-sql", "canary-of-kafka"


@dataclass
class Stage:
    """A bridge with everything secret that it may have, and what was told of it, by where."""

    bridge: Bridge
    process: BridgeProcess
    endpoint: CheckEndpoint
    admin: str
    canaries: dict[str, str]
    told: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: object = None, key: str | None = None, **options: Any) -> str:
        """An answer with its headers, kept."""
        headers = {"Authorization": f"Bearer {key or self.admin}", **options.pop("headers", {})}
        if body is not None:
            options["json"] = body
        answer = self.process.http.request(method, path, headers=headers, **options)
        self.told[f"{method} {path} {len(self.told)}"] = f"{answer.status_code} {answer.headers} {answer.text}"
        return answer.text

    def ask_once(self, method: str, path: str, member: str, body: object = None) -> str:
        """A secret that is shown only now, and a canary from now on."""
        headers = {"Authorization": f"Bearer {self.admin}", "Content-Type": "application/json"}
        answer = self.process.http.request(method, path, headers=headers, json=body or {})
        assert answer.status_code in {200, 201}, answer.text
        secret: str = answer.json()[member]
        self.canaries[f"{member} of {path}"] = secret
        return secret

    def command(self, *words: str, **settings: str) -> None:
        """Its output, kept, however it ends."""
        given = {**self.bridge.environment(), "OUTBOX_BRIDGE_KEY": self.admin, "OUTBOX_BRIDGE_URL": self.process.url}
        done = run_command(*words, folder=self.bridge.directory, settings={**given, **settings}, timeout_s=540)
        where = f"outbox-bridge {' '.join(words)} {len(self.told)}"
        self.told[where] = f"{done.returncode} {done.stdout} {done.stderr}"

    def prepare(self, **members: object) -> str:
        """A transaction with the canaries of a message."""
        sent = {"topic": TOPIC, "key": "k", "value": VALUE, "headers": [["h", HEADER]]}
        text = self.ask("POST", "/v1/transactions", {"producer_group": GROUP, "messages": [sent | members]})
        transaction_id: str = json.loads(text).get("transaction_id", "")
        return transaction_id

    def find_told(self) -> list[tuple[str, str]]:
        """Which canary is told where: in what was kept, and in every file beside the bridge but that of its keys."""
        files = {str(path): path.read_bytes() for path in self.bridge.directory.rglob("*") if path.is_file()}
        texts = {**{where: text.encode() for where, text in self.told.items()}, **files}
        return [
            (name, where)
            for where, text in texts.items()
            for name, canary in self.canaries.items()
            if canary.encode() in text and Path(where).name != "keys"
        ]


@pytest.fixture
def stage(kafka: str, tmp_path: Path) -> Iterator[Stage]:
    """Logs everything it ever logs; its keys are in a file."""
    create_topics(kafka, {TOPIC: 1})
    key, admin = f"k1:{'C4n4ry' * 7}A", make_key_text(os.urandom(RANDOM_BYTES))
    (tmp_path / "keys").write_text(key)
    settings = {
        "OUTBOX_BRIDGE_KAFKA": json.dumps({"bootstrap.servers": kafka, "sasl.password": KAFKA_PASSWORD}),
        "OUTBOX_BRIDGE_SECURITY__KEYS_FILE": str(tmp_path / "keys"),
        "OUTBOX_BRIDGE_AUTH__ADMIN_KEY": admin,
        "OUTBOX_BRIDGE_INSECURE_NO_AUTH": "false",
        "OUTBOX_BRIDGE_LOG__LEVEL": "debug",
    }
    canaries = {"key of the settings": key[3:], "admin key": admin, "password of Kafka": KAFKA_PASSWORD}
    canaries |= {"value": VALUE, "header": HEADER, "token": TOKEN, "answer of an endpoint": BODY, "password": PASSWORD}
    with check_endpoint() as endpoint:
        bridge = Bridge.create(kafka, tmp_path, **settings)
        with bridge.serve(module="api.__main__") as process:
            yield Stage(bridge, process, endpoint, admin, canaries)


def use(stage: Stage) -> None:
    """Rightly: what is prepared is committed, checked or parked; keys and secrets are made and changed."""
    group: dict[str, Any] = {"endpoints": [{"url": f"{stage.endpoint.url}?token={TOKEN}"}]}
    group["check"] = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1}
    stage.ask_once("PUT", f"/v1/producer-groups/{GROUP}", "secret", group)
    stage.ask_once("POST", f"/v1/producer-groups/{GROUP}/rotate-secret", "secret", {})
    stage.ask("POST", f"/v1/producer-groups/{GROUP}/endpoints", {"url": f"{stage.endpoint.url}?token={TOKEN}7"})
    stage.ask("PUT", "/v1/principals/reader", {"grants": [{"verbs": ["read"], "groups": "*"}]})
    key = stage.ask_once("POST", "/v1/principals/reader/keys", "key", {})
    ended, parked = stage.prepare(), stage.prepare()
    stage.ask("POST", f"/v1/transactions/{ended}/commit", {})
    wait_until(lambda: "PARKED" in stage.ask("GET", f"/v1/transactions/{parked}"), 60, "it is parked")
    for path in (
        f"/v1/transactions/{ended}", f"/v1/transactions/{parked}/timeline", "/v1/transactions", "/v1/parked",
        f"/v1/producer-groups/{GROUP}", "/v1/producer-groups", "/v1/principals", "/v1/audit", "/v1/stats", "/metrics",
        "/readyz?verbose=true", "/openapi.json",
    ):  # fmt: skip
        stage.ask("GET", path)
        stage.ask("GET", path, key=key)


def misuse(stage: Stage) -> None:
    """Wrongly, in ways that make errors quote what they speak of."""
    stage.prepare(topic="no-such-topic")
    stage.prepare(value_encoding="base64")
    stage.prepare(headers=[[HEADER]])
    stage.prepare(value=VALUE * 100_000)
    stage.prepare(key=5)
    quoted, lines = f'"{VALUE}"', {"Content-Type": "application/x-ndjson"}
    twice, open_end = f'{{"value":{quoted},"value":{quoted}}}', f'{{"messages":[{{"value":{quoted}'
    for text in (twice, open_end, f'"{VALUE}\\ud800"', VALUE):
        stage.ask("POST", "/v1/transactions", content=text.encode(), headers={"Content-Type": "application/json"})
        stage.ask("POST", "/v1/messages", content=f"{text}\n".encode(), headers=lines)
    for key in (stage.admin[:-1], f"{stage.admin}x", make_key_text(bytes(RANDOM_BYTES))):
        stage.ask("GET", "/v1/transactions", key=key)
    for url in (f"http://u:{TOKEN}@127.0.0.1/", f"http://10.0.0.1/?token={TOKEN}", f"ftp://x/?{TOKEN}"):
        stage.ask("PUT", "/v1/producer-groups/other", {"endpoints": [{"url": url}]})


def fail(stage: Stage) -> None:
    """An endpoint that answers with its own secrets, SQL that fails under everything, and a death in between."""
    stage.endpoint.status, stage.endpoint.default = 500, BODY
    stage.prepare()
    wait_until(
        lambda: '"last_failure":"status 500"' in stage.ask("GET", f"/v1/producer-groups/{GROUP}"),
        60,
        "its answer is bad",
    )
    with sqlite3.connect(stage.bridge.directory / "bridge.db") as database:
        for table in ("secrets", "transactions"):
            database.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
            database.commit()
            stage.ask("POST", f"/v1/producer-groups/{GROUP}/rotate-secret", {})
            stage.ask("GET", f"/v1/transactions/{stage.prepare()}")
            database.execute(f"ALTER TABLE {table}_away RENAME TO {table}")
            database.commit()
    database.close()
    stage.process.kill()


@contextmanager
def noted(stage: Stage, what: str) -> Iterator[None]:
    """The error of a call, as a log would show it."""
    try:
        yield
    except outbox.OutboxError as error:
        stage.told[f"error of {what}"] = f"{error!r} {''.join(traceback.format_exception(error))}"
    else:
        raise AssertionError(f"{what} did not fail")


def use_sdk(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Its errors, its settings, and what it logs."""
    caplog.set_level(logging.DEBUG)
    right = BridgeConfig(http=HttpConfig(key=stage.admin))
    wrong = BridgeConfig(http=HttpConfig(key=f"{stage.admin[:-1]}{'E' if stage.admin.endswith('A') else 'A'}"))
    message = Message(TOPIC, key="k", value=VALUE.encode(), headers=[("h", HEADER.encode())])
    lost = Message("no-such", value=VALUE.encode())
    calls: dict[str, tuple[str, BridgeConfig, Message]] = {
        "a wrong key": (stage.process.url, wrong, message),
        "a missing topic": (stage.process.url, right, lost),
        "no bridge": (f"http://{NOWHERE}", right, message),
    }
    for what, (url, config, sent) in calls.items():
        with outbox.Bridge(url, GROUP, config=config) as face, noted(stage, what):
            face.publish(sent)
    stage.told["settings of the SDK"] = f"{right!r} {right}"
    stage.told["log of the SDK"] = caplog.text


def test_no_canary_is_told_anywhere(stage: Stage, kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    """Used, misused and broken; by HTTP, by commands and by the SDK; and the messages have still arrived."""
    use(stage)
    misuse(stage)
    use_sdk(stage, caplog)
    for words in (
        "tx list", f"group get {GROUP}", f"group test {GROUP}", "parked list", "key list", "config show", "doctor",
        "acl", "security show", "security rewrap", f"report run --out runs --topics {TOPIC} --cores 1",
    ):  # fmt: skip
        stage.command(*words.split())
    stage.command("tx", "list", OUTBOX_BRIDGE_KEY=stage.admin[:-1])
    away = f"postgresql+psycopg://bridge:{PASSWORD}@{NOWHERE}/bridge"
    for words in ("migrate", "doctor", "serve --port 0", "config show"):
        stage.command(*words.split(), OUTBOX_BRIDGE_DATABASE_URL=away)
    stage.command("relay", "--once", "-g", GROUP, OUTBOX_DATABASE_URL=away)
    limits = Path(f"/proc/{stage.process.popen.pid}/limits").read_text().splitlines()
    assert [line.split()[4] for line in limits if line.startswith("Max core file size")] == ["0"]
    stage.told["what every user of the machine sees"] = Path(f"/proc/{stage.process.popen.pid}/cmdline").read_text()
    fail(stage)
    assert stage.find_told() == []
    assert [record.value for record in read_committed(kafka, [TOPIC])] == [VALUE.encode()]
    assert (stage.bridge.directory / "runs" / "000001" / "report.html").exists()
    stage.told["what the SDK was given"] = f"{VALUE} {stage.admin}"
    assert [name for name, _ in stage.find_told()] == ["admin key", "value"]  # they would have been found
