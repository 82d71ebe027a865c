"""The least rights in Kafka, as `outbox-bridge acl` prints them, on a broker with SCRAM over TLS and rules."""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from api.kafka_version import ask_versions
from bridge.broker.jars import KAFKA_VERSION
from bridge.core.topics import RIGHTS_REMEDY, KafkaOperation, KafkaRight, Resource, Role, least_rights, with_prefix
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from spark.errors import BadUsage, Indeterminate
from spark.read.offsets import take_window
from spark.read.sources import KafkaAccess, _cut, _land
from tests.support.bridge_process import (
    Bridge,
    BridgeProcess,
    CheckEndpoint,
    check_endpoint,
    create_topics,
    read_committed,
    wait_until,
)
from tests.support.broker import BrokerFactory
from tests.support.secured_kafka import SecuredKafka, secured_kafka

REAL = "rights.orders"
TOPICS = with_prefix("rights.", 1)
ROLES = (Role.API, Role.SETTLER, Role.PROJECTOR)
# What the clients ask for besides, and do without: which group a reader that never joins would belong to, and topics
# that are looked at to see whether Kafka answers, or that nobody may see.
NEEDLESS = {
    ("Group", "outbox-bridge-reader", "DESCRIBE"),
    ("Group", "outbox-bridge-report", "DESCRIBE"),
    ("Topic", "outbox-bridge", "DESCRIBE_CONFIGS"),
    ("Topic", "__consumer_offsets", "DESCRIBE"),
    ("Topic", "__consumer_offsets", "DESCRIBE_CONFIGS"),
    ("Topic", "__transaction_state", "DESCRIBE"),
    ("Topic", "__transaction_state", "DESCRIBE_CONFIGS"),
    ("Cluster", "kafka-cluster", "IDEMPOTENT_WRITE"),  # the right to write to any topic does as well
    ("Cluster", "kafka-cluster", "CREATE"),  # that to create this topic does as well
}

Used = set[tuple[str, str, str, str]]  # user, kind of resource, its name, operation


@dataclass(slots=True)
class Stage:
    """A bridge whose roles have users of their own, each with the least rights."""

    kafka: SecuredKafka
    bridge: Bridge
    endpoint: CheckEndpoint
    folder: Path
    users: dict[str, dict[str, str]] = field(default_factory=dict)
    processes: dict[Role, BridgeProcess] = field(default_factory=dict)
    prepared: list[str] = field(default_factory=list)

    @property
    def api(self) -> BridgeProcess:
        """Where producers call."""
        return self.processes[Role.API]

    def add_user(self, name: str, rights: Sequence[KafkaRight]) -> None:
        """Somebody with these rights alone."""
        self.users[name] = self.kafka.add_user(name)
        self.kafka.allow(name, rights)

    def environment(self, user: str) -> dict[str, str]:
        """Settings as they are meant to be given: the password is in a file."""
        options = dict(self.users[user])
        password = self.folder / f"{user}.password"
        password.write_text(options.pop("sasl.password") + "\n")
        return {"OUTBOX_BRIDGE_KAFKA": json.dumps({**options, "sasl.password_file": str(password)})}

    def run(self, user: str, *words: str) -> str:
        """A command of this user, to its end."""
        return self.act_as(user).run(*words)

    def run_refused(self, user: str, *words: str) -> str:
        """A command of this user that fails; what it says."""
        return self.act_as(user).run_refused(*words)

    def act_as(self, user: str) -> Bridge:
        """The bridge, for commands of this user."""
        bridge = self.bridge
        settings = {**bridge.settings, **self.environment(user)}
        return Bridge(bridge.kafka, bridge.directory, bridge.prefix, bridge.database_url, settings)

    def prepare(self, value: str, topic: str = REAL) -> str:
        """A transaction with one message, which is its own key."""
        body = {"producer_group": "shop", "messages": [{"topic": topic, "key": value, "value": value}]}
        made = self.api.post("/v1/transactions", body)
        assert made.status_code == 201, made.text
        self.prepared.append(value)
        transaction_id: str = made.json()["transaction_id"]
        return transaction_id

    def commit(self, transaction_id: str) -> tuple[int, str]:
        """Status and text."""
        answer = self.api.post(f"/v1/transactions/{transaction_id}/commit")
        return answer.status_code, answer.text

    def is_published(self, transaction_id: str) -> bool:
        """Whether a repeated commit tells where."""
        answer = self.api.post(f"/v1/transactions/{transaction_id}/commit")
        return answer.status_code == 200 and bool(answer.json()["receipts"])

    def state_of(self, transaction_id: str) -> str:
        """As the projection, or whoever knows, tells."""
        state: str = self.api.get(f"/v1/transactions/{transaction_id}").json()["state"]
        return state

    def find_used(self, word: str) -> Used:
        """What the broker was asked for and has `Allowed`, or `Denied`, by user. The administrator has no rules."""
        line = rf"Principal = User:(\S+) is {word} operation = (\S+) from host = \S+ on resource = (\w+):LITERAL:(\S+)"
        text = self.kafka.broker.output_file.read_text()
        return {(user, kind, name, what) for user, what, kind, name in re.findall(line, text) if user != "ANONYMOUS"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Migrated and running."""
    folder = tmp_path_factory.mktemp("rights")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patched:
        # the broker tells of every right that it looks for
        patched.setenv("JAVA_TOOL_OPTIONS", "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug")
        kafka = stack.enter_context(secured_kafka(folder / "kafka"))
        patched.delenv("JAVA_TOOL_OPTIONS")
        create_topics(kafka.admin_bootstrap, {REAL: 1})
        settings = {"OUTBOX_BRIDGE_TOPICS__QUEUES": "1"}
        bridge = Bridge(kafka.bootstrap, folder, "rights.", f"sqlite:///{folder / 'bridge.db'}", settings)
        made = Stage(kafka, bridge, stack.enter_context(check_endpoint()), folder)
        for role in Role:
            made.add_user(role, least_rights(role, TOPICS, [REAL]))
        made.run(Role.MIGRATE, "migrate")
        for role in ROLES:
            made.processes[role] = stack.enter_context(bridge.serve(role, **made.environment(role)))
        check = {"transaction_timeout_seconds": 1, "max_checks": 1}
        group = {"endpoints": [{"url": made.endpoint.url}], "check": check}
        assert made.api.http.put("/v1/producer-groups/shop", json=group).status_code in {200, 201}
        yield made


def test_whole_bridge_runs_with_exactly_those_rights(stage: Stage) -> None:
    """Prepares, ends, checks, parks, tells, projects, rebuilds and reports: what is refused by Kafka is known, and what
    `acl` prints is used."""
    kafka = stage.kafka
    stage.endpoint.default = "UNKNOWN"
    assert stage.commit(stage.prepare("committed"))[0] == 200
    parked = stage.prepare("parked")
    wait_until(lambda: stage.state_of(parked) == "PARKED", 60, "it is parked")
    end = TopicPartition(TOPICS.half, 0, -1)
    kafka.admin.delete_records([end])[end].result(30)  # from here on the parked topic alone has the message
    assert _read(stage, parked) == ["parked"]
    assert stage.commit(parked)[0] == 200
    wait_until(lambda: stage.is_published(parked), 60, "the parked one is published")
    stage.endpoint.default = "COMMIT"
    checked = stage.prepare("checked")
    wait_until(lambda: stage.state_of(checked) == "COMMITTED", 60, "it is checked")
    assert _read(stage, checked) == ["checked"]
    stage.run(Role.PROJECTOR, "projection", "rebuild")
    stage.run(Role.MIGRATE, "migrate", "--accept-identity", "--yes")
    _report(stage)
    _ask_for_members(stage)
    assert _diagnose(stage, Role.API, "api") == []
    assert _diagnose(stage, Role.SETTLER, "settler,projector") == []
    assert _diagnose(stage, Role.PROJECTOR, "projector") == []
    denied = {(kind, name, operation) for _, kind, name, operation in stage.find_used("Denied")}
    assert denied <= NEEDLESS
    used = stage.find_used("Allowed")
    printed = [(role, right) for role in Role for right in least_rights(role, TOPICS, [REAL])]
    assert [(role, right) for role, right in printed if not _is(role, right, used)] == []


def _read(stage: Stage, transaction_id: str) -> list[str]:
    shown = stage.api.get(f"/v1/transactions/{transaction_id}", params={"include": "messages"}).json()
    return [message["value"] for message in shown["messages"]]


def _is(role: Role, right: KafkaRight, used: Used) -> bool:
    kind = {Resource.TOPIC: "Topic", Resource.GROUP: "Group", Resource.TRANSACTIONAL_ID: "TransactionalId"}
    return any(
        (user, resource, what) == (role, kind[right.resource], right.operation.name)
        and (name.startswith(right.name) if right.is_prefix else name == right.name)
        for user, resource, name, what in used
    )


def _report(stage: Stage, user: str = Role.REPORT) -> None:
    """What a report does with Kafka: the window, then every range of it."""
    options = stage.users[user]
    window = take_window(options, TOPICS, [REAL])
    (stage.folder / user).mkdir(exist_ok=True)
    for part in _cut(window, KafkaAccess(options, by_receipts=False), stage.folder / user):
        if reason := _land(part, options):
            raise Indeterminate(reason, "")


def _ask_for_members(stage: Stage) -> None:
    """A bridge that was made before op records had seals asks first whether settlers run."""
    database = stage.folder / "unsealed.db"
    with sqlite3.connect(stage.folder / "bridge.db") as old, sqlite3.connect(database) as copy:
        old.backup(copy)
        copy.execute("DELETE FROM bridge_keys")
    copy.close()
    old.close()
    bridge = stage.act_as(Role.MIGRATE)
    bridge.database_url = f"sqlite:///{database}"
    assert "settlers are running (group" in bridge.run_refused("migrate")


def _diagnose(stage: Stage, user: str, roles: str) -> list[Mapping[str, str]]:
    """What `doctor` finds broken in Kafka."""
    words = ("doctor", "--roles", roles, "--url", stage.api.url, "-o", "json")
    found = json.loads(stage.run(user, *words))
    return [one for one in found if one["verdict"] == "broken"]


async def test_each_right_that_is_missing_is_named(stage: Stage) -> None:
    """To an internal topic or to the group, taken alone from somebody who has all the others."""
    for role in ROLES:
        rights = [right for right in least_rights(role, TOPICS, []) if right.resource is not Resource.TRANSACTIONAL_ID]
        for right in rights:
            user = f"{role}-{right.resource}-{right.name}-{right.operation}"
            stage.add_user(user, [one for one in rights if one != right])
            admin = KafkaTopicAdmin(KafkaConfig(stage.users[user]))
            try:
                denied = await admin.find_denied(rights)
            finally:
                await admin.close()
            alike = {one for one in rights if one.name == right.name}  # who may not describe it is told nothing of it
            assert {right} <= set(denied) <= alike


async def test_release_is_told_to_those_who_are_not_logged_in(stage: Stage) -> None:
    """Through TLS as the clients speak it; without it, or with another authority, the reason is told."""
    trusted = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(stage.kafka.ca_file)}
    untrusted = {"security.protocol": "SASL_SSL"}
    release = KAFKA_VERSION.rpartition(".")[0]
    for options, found in (
        (trusted, f"is Kafka {release}"),
        (untrusted, "CERTIFICATE_VERIFY_FAILED"),
        ({}, "want TLS?"),
    ):
        (answer,) = await ask_versions([stage.kafka.bootstrap], options)
        assert found in str(answer)


async def test_broker_that_has_just_started_denies_nothing(broker_factory: BrokerFactory) -> None:
    """It cannot tell of a group before it has loaded them; a first `migrate` comes so early."""
    admin = KafkaTopicAdmin(KafkaConfig({"bootstrap.servers": broker_factory().bootstrap}))
    try:
        assert await admin.find_denied(least_rights(Role.MIGRATE, TOPICS, [])) == []
    finally:
        await admin.close()


def test_broker_that_takes_few_connections_is_named(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """It ends those that are too many without a word: all that a client has is a time-out, as where a right lacks."""
    kafka = broker_factory(settings={"max.connections.per.ip": "5"})
    bridge = Bridge(kafka.bootstrap, tmp_path, "few.", f"sqlite:///{tmp_path / 'bridge.db'}")
    assert "max.connections.per.ip" in bridge.run_refused("migrate")
    said = bridge.run_refused("doctor")
    assert "max.connections.per.ip" in said
    assert "Allow Write" not in said


@pytest.mark.parametrize("role", ROLES)
def test_process_without_a_right_refuses_to_begin(stage: Stage, role: Role) -> None:
    """It names what is missing, and where that is found."""
    lacking = KafkaRight(Resource.TOPIC, TOPICS.op, KafkaOperation.READ)
    stage.add_user(f"less-{role}", [right for right in least_rights(role, TOPICS, []) if right != lacking])
    said = stage.run_refused(f"less-{role}", "serve", "--roles", role, "--port", "0")
    assert f"{lacking}; " in said
    assert RIGHTS_REMEDY in said


def test_migrate_without_a_right_names_what_it_may_not(stage: Stage) -> None:
    """And once it has that, does the rest, whatever it had done."""
    for number in range(len(least_rights(Role.MIGRATE, TOPICS, []))):
        everything = least_rights(Role.MIGRATE, with_prefix(f"rights.{number}.", 1), [])
        right = everything[number]
        user = f"migrate-{number}"
        stage.add_user(user, [one for one in everything if one != right])
        bridge = stage.act_as(user)
        bridge.prefix, bridge.database_url = f"rights.{number}.", f"sqlite:///{stage.folder / user}.db"
        said = bridge.run_refused("migrate")
        assert right.name.removesuffix("-") in said or "Transactional Id authorization failed" in said
        assert RIGHTS_REMEDY in said
        if right.operation is KafkaOperation.WRITE:  # here it had begun
            stage.kafka.allow(user, [right])
            bridge.run("migrate")


@pytest.mark.parametrize("operation", [KafkaOperation.DESCRIBE, KafkaOperation.DESCRIBE_CONFIGS])
def test_api_without_a_right_to_a_topic_refuses_messages_for_it(stage: Stage, operation: KafkaOperation) -> None:
    """Nothing is applied; a moment after it has the right, they are taken."""
    topic = f"rights.api-{operation}"
    create_topics(stage.kafka.admin_bootstrap, {topic: 1})
    stage.kafka.allow(Role.SETTLER, _of(Role.SETTLER, topic))
    stage.kafka.allow(Role.API, [right for right in _of(Role.API, topic) if right.operation is not operation])
    body = {"producer_group": "shop", "messages": [{"topic": topic, "key": "k", "value": "at first"}]}
    refused = stage.api.post("/v1/transactions", body)
    assert (refused.status_code, refused.json()["outcome"]) == (403, "not_applied")
    assert "not describe it" in refused.json()["detail"]
    stage.kafka.allow(Role.API, [right for right in _of(Role.API, topic) if right.operation is operation])
    wait_until(lambda: stage.api.post("/v1/transactions", body).status_code == 201, name="it is taken")
    assert stage.commit(stage.prepare("taken", topic))[0] == 200


@pytest.mark.parametrize("operation", [KafkaOperation.WRITE, KafkaOperation.DESCRIBE_CONFIGS])
def test_settler_without_a_right_to_a_topic_blocks_commits_to_it(stage: Stage, operation: KafkaOperation) -> None:
    """They are committed, told as blocked with their reason, and published once it has the right."""
    topic = f"rights.settler-{operation}"
    create_topics(stage.kafka.admin_bootstrap, {topic: 1})
    stage.kafka.allow(Role.API, _of(Role.API, topic))
    stage.kafka.allow(Role.SETTLER, [right for right in _of(Role.SETTLER, topic) if right.operation is not operation])
    waiting = stage.prepare("blocked", topic)
    status, text = stage.commit(waiting)
    assert status == 202, text
    assert "NOT_AUTHORISED" in text
    assert stage.commit(stage.prepare(f"beside {operation}"))[0] == 200
    stage.kafka.allow(Role.SETTLER, [right for right in _of(Role.SETTLER, topic) if right.operation is operation])
    wait_until(lambda: stage.is_published(waiting), 60, "it is published")
    assert [record.value for record in read_committed(stage.kafka.admin_bootstrap, [topic])] == [b"blocked"]


def test_settler_without_a_right_to_its_transactional_ids_says_so(stage: Stage) -> None:
    """Ends are unknown, as they may be applied; once it has the right, they are, once."""
    (right,) = [one for one in least_rights(Role.SETTLER, TOPICS, []) if one.resource is Resource.TRANSACTIONAL_ID]
    waiting = stage.prepare("without transactions")
    stage.kafka.take(Role.SETTLER, right)
    status, text = stage.commit(waiting)
    assert (status, json.loads(text)["outcome"]) in {(504, "unknown"), (503, "unknown")}
    settler = stage.processes[Role.SETTLER]
    wait_until(lambda: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in settler.get("/readyz?verbose=true").text, 60, "told")
    stage.kafka.allow(Role.SETTLER, [right])
    wait_until(lambda: stage.is_published(waiting), 60, "it is published")
    published = [(record.value or b"").decode() for record in read_committed(stage.kafka.admin_bootstrap, [REAL])]
    assert published.count("without transactions") == 1


def test_api_that_may_write_to_the_journal_no_more_says_so(stage: Stage) -> None:
    """Callers are told to come again: without these words they do so for ever, at a process that seems well (A)."""
    (right,) = [
        one for one in least_rights(Role.API, TOPICS, [])
        if one.name == TOPICS.half and one.operation is KafkaOperation.WRITE
    ]  # fmt: skip
    body = {"producer_group": "shop", "messages": [{"topic": REAL, "key": "k", "value": "refused"}]}
    stage.kafka.take(Role.API, right)

    def is_told() -> bool:
        answer = stage.api.post("/v1/transactions", body)
        return answer.status_code == 503 and "TOPIC_AUTHORIZATION_FAILED" in stage.api.get("/readyz?verbose=true").text

    wait_until(is_told, 60, "told")
    assert "journal_refused" in stage.api.log.read_text()
    stage.kafka.allow(Role.API, [right])
    waiting = wait_until(lambda: stage.api.post("/v1/transactions", body).json().get("transaction_id"), 60, "taken")
    assert stage.api.post(f"/v1/transactions/{waiting}/rollback").status_code == 200
    assert "TOPIC_AUTHORIZATION_FAILED" not in stage.api.get("/readyz?verbose=true").text


def test_report_without_a_right_names_the_topic(stage: Stage) -> None:
    """It tells no verdict instead."""
    for right in least_rights(Role.REPORT, TOPICS, [REAL]):
        user = f"report-{right.name}-{right.operation}"
        stage.add_user(user, [one for one in least_rights(Role.REPORT, TOPICS, [REAL]) if one != right])
        with pytest.raises((BadUsage, Indeterminate), match=f"{right.name}|uthorization"):
            _report(stage, user)


def test_nothing_of_it_was_lost(stage: Stage) -> None:
    """Whatever was prepared is visible once, but what the producer never decided."""
    stage.endpoint.default = "COMMIT"
    topics = stage.kafka.admin.list_topics(timeout=10).topics
    real = [name for name in topics if name.startswith(("rights.o", "rights.s", "rights.a"))]

    def published() -> list[str]:
        return sorted((record.value or b"").decode() for record in read_committed(stage.kafka.admin_bootstrap, real))

    wanted = sorted([*stage.prepared, "at first", "at first"])  # the endpoint says COMMIT
    wait_until(lambda: published() == wanted, 60, "all are published")


def _of(role: Role, topic: str) -> list[KafkaRight]:
    return [right for right in least_rights(role, TOPICS, [topic]) if right.name == topic]
