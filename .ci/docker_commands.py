"""Runs what the files of docker/ run, without Docker, in roots made as the Dockerfiles say.

Commands, environments, users and the health check are read from the files; only addresses and ports are put in, of a
real Kafka and a real PostgreSQL of this machine. A transaction with a key is prepared, committed and published, and the
image of the report proves it.
"""

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml
from chart import EVERYTHING
from containers import Container, Database, put_all_in, read_chart, read_compose
from image import Build, Limits, Stage

from api.remoting.message import RequestCode
from bridge.broker.dev_broker import DevBroker
from bridge.broker.jars import fetch_jars
from bridge.broker.ports import choose_free_port, find_java
from bridge.core.record import Resolution
from bridge.core.topics import Role, least_rights, with_prefix
from tests.support.authority import Authority
from tests.support.postgres import PostgresServer
from tests.support.remoting_client import RemotingClient
from tests.support.secured_kafka import SecuredKafka, secured_kafka
from tests.tidy.test_locks import normalised

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
LOOK_INTERVAL_S = 0.3
QUEUES = 4
SECURED = "secured."  # before the names of the chart's bridge
ADVERTISED = "${ROCKETMQ_ADVERTISE:-127.0.0.1:9876}"
PLAIN_TOPIC, SECURED_TOPIC = "orders", "secured.orders"


def check_files(stage: Stage, folder: Path) -> None:
    """The image has every file of a wheel that is made from the whole project, as it is in there."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    (packages,) = stage.root.glob("opt/*/lib/python3.*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        wrong = [name for name in names if not is_same(packages / name, archive.read(name))]
    assert names
    assert wrong == [], f"missing in the image, or different: {wrong}"
    print(f"{len(names)} files of the project are in the image", flush=True)


def check_bill(stage: Stage, lock: str) -> None:
    """The bill of materials, as `make bill` makes it, names ours and nothing that is not in the lock."""
    (python,) = stage.root.glob("opt/*/bin/python")
    make = [
        Path(sys.executable).with_name("cyclonedx-py"),
        "environment",
        "--pyproject",
        ROOT / "pyproject.toml",
        python,
    ]
    bill = json.loads(subprocess.run(make, capture_output=True, check=True).stdout)
    found = {f"{normalised(component['name'])}=={component['version']}" for component in bill["components"]}
    locked = set(re.findall(r"^([\w.-]+==\S+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE))
    assert found
    assert found <= locked, f"not locked: {found - locked}"
    print(f"{len(found)} packages in the bill of materials, all of {lock}", flush=True)


def is_same(path: Path, contents: bytes) -> bool:
    return path.is_file() and path.read_bytes() == contents


@dataclass(slots=True)
class Door:
    """Where and how the api is called."""

    url: str
    key: str
    context: ssl.SSLContext | None = None

    def call(self, path: str, body: object = None, method: str | None = None) -> dict[str, Any]:
        """The answer, which must be a success: a POST if there is a body and nothing else is said."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = Request(self.url + path, None if body is None else json.dumps(body).encode(), headers, method=method)
        with urlopen(request, timeout=STOP_TIMEOUT_S, context=self.context) as answer:
            members: dict[str, Any] = json.load(answer)
        return members

    def publish_one(self, topic: str) -> None:
        """Prepares and commits a transaction, with the key; waits until it is published."""
        message = {"topic": topic, "key": "7", "value": {"order": 7}}
        self.call("/v1/producer-groups/orders", {}, "PUT")
        prepared = self.call("/v1/transactions", {"producer_group": "orders", "messages": [message]})
        transaction_id = prepared["transaction_id"]
        self.call(f"/v1/transactions/{transaction_id}/commit", {"producer_group": "orders"})
        await_true("published", lambda: self.is_published(transaction_id))
        print(f"{transaction_id} was prepared, committed and published", flush=True)

    def is_published(self, transaction_id: str) -> bool:
        """Whether the api says so; not while the projection is behind, as just after a start."""
        try:
            return bool(self.call(f"/v1/transactions/{transaction_id}")["receipts"])
        except HTTPError as error:
            if error.code != 503:
                raise
            return False


def await_true(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not {what} after {START_TIMEOUT_S:.0f} s"
        time.sleep(LOOK_INTERVAL_S)


def is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=STOP_TIMEOUT_S):
            return True
    except OSError:  # not there yet, or 503
        return False


def send_signed(port: int, api: Door, topic: str, advertised: str, context: ssl.SSLContext | None = None) -> None:
    """As a client of RocketMQ with a key of its own: asks for the way, sends a half message, commits it."""
    path = "/v1/principals/rocketmq"
    grants = [{"verbs": ["prepare", "decide"], "groups": "orders", "topics": topic}]
    api.call(path, {"grants": grants}, "PUT")
    made = api.call(f"{path}/keys", {})
    signing = (made["key_id"], made["signing_secret"])
    with closing(RemotingClient(port, "orders", context=context, signing=signing)) as client:
        route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert route is not None
        assert advertised.encode() in route.body, route.body
        await_true("known to the door", lambda: client.send(topic, "K7").code == 0)  # another process has made the key
        half = client.prepare(topic, "K7")
        client.end_half(half, int(Resolution.COMMIT))
        await_true("published", lambda: api.is_published(half.transaction_id))
    print(f"{half.transaction_id} was sent, committed and published as by a client of RocketMQ", flush=True)


def prove(stage: Stage, bootstrap: str) -> None:
    """Runs the report's image on what is in Kafka."""
    words = [*stage.entry_point, "--kafka", bootstrap, "--topics", PLAIN_TOPIC, "--out", "/reports", "--strict"]
    subprocess.run(stage.words(words, {}, Limits(read_only=True, tmpfs=["/tmp", "/reports"])), check=True)
    print("the report has proved it", flush=True)


def build(name: str, lock: str, folder: Path) -> Stage:
    """What the Dockerfile says; it has all that is in the project, and of others only what is locked."""
    stage = Build(ROOT / "docker" / name, ROOT, folder / name).run()
    check_bill(stage, lock)
    check_files(stage, folder / f"{name}.wheel")
    return stage


@contextmanager
def running(containers: Mapping[str, Container]) -> Iterator[None]:
    """All of them; each must end cleanly at SIGTERM, as `docker stop` and Kubernetes send it."""
    with ExitStack() as stack:
        processes = {name: container.start() for name, container in containers.items()}
        for process in processes.values():
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
        for process in processes.values():
            process.terminate()
        for name, process in processes.items():
            assert process.wait(STOP_TIMEOUT_S) == 0, f"{name} ended with {process.returncode} after SIGTERM"
        print(*processes.keys(), "stopped cleanly", flush=True)


def run_compose(stage: Stage, kafka: SecuredKafka, database: Database) -> None:
    """All of the Compose file, as `docker compose up` and `down` do."""
    key = Container(stage, ["key", "new"], {}, Limits()).run().strip()
    put_in = {
        "kafka:9092": kafka.admin_bootstrap,
        "postgresql+psycopg://bridge:${POSTGRES_PASSWORD:?choose a password}@postgres:5432/bridge": database.url,
        "${OUTBOX_BRIDGE_KEY:?make one with outbox-bridge key new}": key,
        ADVERTISED: "127.0.0.1:9876",
    }
    run_services(read_compose(stage, "compose.yaml", put_in, database), [PLAIN_TOPIC, SECURED_TOPIC], key)


def run_services(services: dict[str, Container], topics: list[str], key: str, ca: Path | None = None) -> None:
    """Migrates, starts the others, those of profiles too, publishes by the api and as a client of RocketMQ to the first
    topic, stops. `ca`: who signs certificates."""
    migrate = services.pop("migrate")
    for _ in range(2):  # the second time as after a restart
        migrate.run()
    for topic in topics:
        migrate.run("topic", "create", topic)
    with running(services):
        for name, service in services.items():
            await_true(f"{name} healthy", service.is_healthy)
            await_true(f"{name} ready", partial(is_ready, service.ports[service.probed]))
        context = None if ca is None else ssl.create_default_context(cafile=str(ca))
        scheme, remoting = "http" if ca is None else "https", services["remoting"].ports[9876]
        api = Door(f"{scheme}://127.0.0.1:{services['api'].ports[8780]}", key, context)
        api.publish_one(topics[0])
        send_signed(remoting, api, topics[0], f"127.0.0.1:{remoting}", context)


def run_secured_compose(stage: Stage, database: Database, folder: Path) -> None:
    """All of the secured Compose file: its Kafka by its settings, with the user that it makes."""
    folder.mkdir()
    secrets = folder / "made"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([ROOT / "docker/secured/make-secrets", secrets], env={**os.environ, "PATH": path}, check=True)
    (secrets / "database-url").write_text(database.url)
    clients, controller, admin = choose_free_port(), choose_free_port(), choose_free_port()
    put_in = {"//:": "//127.0.0.1:", "kafka:": "127.0.0.1:", "/run/secrets": str(secrets)}
    put_in |= {"9092": str(clients), "9093": str(controller), "9094": str(admin)}
    lines = (ROOT / "docker/secured/server.properties").read_text().splitlines()
    settings = dict(put_all_in(put_in, line).split("=", 1) for line in lines if not line.startswith("#"))
    del settings["log.dirs"]  # the broker's folder here
    broker = DevBroker(folder / "broker", port=admin, controller_port=controller, settings=settings)
    broker.start()
    try:
        make_user(put_in)
        put_in = {"kafka:9092": f"127.0.0.1:{clients}", ADVERTISED: "127.0.0.1:9876"}
        services = read_compose(stage, "compose.secured.yaml", put_in, database, secrets)
        run_services(services, [PLAIN_TOPIC], (secrets / "admin-key").read_text().strip(), secrets / "ca.pem")
    finally:
        broker.kill()


def make_user(put_in: Mapping[str, str]) -> None:
    """The command of the secured Compose file, with Kafka's own tool."""
    service = yaml.safe_load((ROOT / "docker/compose.secured.yaml").read_text())["services"]["kafka-user"]
    tool = f"{shlex.quote(str(find_java().path))} -cp '{fetch_jars()}/*' kafka.admin.ConfigCommand"
    (command,) = service["command"]
    command = put_all_in({**put_in, "$$": "$", "/opt/kafka/bin/kafka-configs.sh": tool}, command)
    subprocess.run([*service["entrypoint"], command], check=True, capture_output=True)


def run_chart(stage: Stage, kafka: SecuredKafka, database: Database, folder: Path) -> None:
    """The chart's Job, then its pods: TLS, a SCRAM user with the least rights for each role, secrets as files."""
    new = Container(stage, [], {}, Limits())
    key = new.run("key", "new").strip()
    shared = {"database-url": database.url, "admin-key": key, "security-keys": new.run("security", "new-key").strip()}
    shared |= {
        "pager-url": "https://pager.example.com/bridge",
        "pager-secret": f"whsec_{b64encode(bytes(32)).decode()}",
    }
    authority = Authority(folder)
    certificate = authority.issue()
    secrets = {"bridge-tls": {"tls.crt": certificate.cert.read_bytes(), "tls.key": certificate.key.read_bytes()}}
    users = {}
    for role in (Role.API, Role.SETTLER, Role.PROJECTOR, Role.MIGRATE):
        options = users[str(role)] = kafka.add_user(f"chart-{role}")
        kafka.allow(f"chart-{role}", least_rights(role, with_prefix(SECURED, QUEUES), [SECURED_TOPIC]))
        own = {**shared, "kafka-password": options.pop("sasl.password")}
        secrets[f"bridge-{role}"] = {name: value.encode() for name, value in own.items()}
        secrets[f"bridge-{role}"]["ca.crt"] = Path(options.pop("ssl.ca.location")).read_bytes()
    values = {
        "settings": {
            "kafka": users["api"],
            "topics": {"prefix": SECURED, "queues": QUEUES},
            "webhooks": EVERYTHING["settings"]["webhooks"],
        },
        "secret": EVERYTHING["secret"],
        "tls": {"secret": "bridge-tls"},
        "roles": {
            role: {"settings": {"kafka": options}, "secret": {"name": f"bridge-{role}"}}
            for role, options in users.items()
        }
        | {"remoting": {"replicas": 1, "settings": {"kafka": users["api"]}, "secret": {"name": "bridge-api"}}},
    }
    pods = read_chart(stage, values, database, secrets, folder / "secrets")
    pods.pop("migrate").run()
    with running(pods):
        for name, pod in pods.items():
            await_true(f"{name} ready", partial(is_ready, pod.ports[pod.probed]))
        api = Door(f"https://127.0.0.1:{pods['api'].ports[8780]}", key, authority.client())
        api.publish_one(SECURED_TOPIC)
        send_signed(pods["remoting"].ports[9876], api, SECURED_TOPIC, "-remoting.", authority.client())


def main() -> int:
    if os.geteuid() != 0:
        print("Only root may mount and chroot, as this does: sudo make images")
        return 1
    os.umask(0o022)
    folder = Path(tempfile.mkdtemp(prefix="outbox-bridge-image-"))
    folder.chmod(0o755)
    postgres = PostgresServer()
    try:
        with ThreadPoolExecutor() as beside, secured_kafka(folder / "kafka") as kafka:
            report = beside.submit(build, "spark.Dockerfile", "spark.txt", folder)
            stage = build("Dockerfile", "server.txt", folder)
            run_compose(stage, kafka, Database.seen_from(postgres.create()))
            run_secured_compose(stage, Database.seen_from(postgres.create()), folder / "secured")
            run_chart(stage, kafka, Database.seen_from(postgres.create()), folder)
            prove(report.result(), kafka.admin_bootstrap)
    finally:
        postgres.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
