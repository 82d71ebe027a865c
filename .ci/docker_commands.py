"""Runs what the files of docker/ run, without Docker, in roots made as the Dockerfiles say.

Commands, environments, users and the health check are read from the files; only addresses and ports are put in, of a
real Kafka and a real PostgreSQL of this machine. A transaction with a key is prepared, committed and published, and the
image of the report proves it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml
from image import Build, Limits, Stage

from bridge.broker.ports import choose_free_port
from tests.support.broker import running_broker
from tests.support.postgres import PostgresServer
from tests.tidy.test_locks import normalised

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
LOOK_INTERVAL_S = 0.3
TOPIC = "orders"
SOCKET_FOLDER = "/run/postgresql"

Service = dict[str, object]
Process = subprocess.Popen[bytes]


class Containers:
    """Processes in the image's root, as the Compose file wants them."""

    def __init__(self, stage: Stage, bootstrap: str, database_url: str) -> None:
        self.stage = stage
        self._bootstrap = bootstrap
        address, folder = database_url.split("host=")
        self._database_url = f"{address}host={SOCKET_FOLDER}"
        self._sockets = {f"{SOCKET_FOLDER}/{path.name}": path for path in Path(folder).glob(".s.PGSQL.*[0-9]")}
        self.key = self.run_to_end({}, ["key", "new"]).strip()

    def run(self, service: Service, words: Sequence[str], port: int = 0) -> Process:
        """A command in the image's entry point, at another port than the image's own."""
        print("+", *words, flush=True)
        return subprocess.Popen(self._words(service, [*self.stage.entry_point, *words], port))

    def run_to_end(self, service: Service, words: Sequence[str]) -> str:
        """What it prints; it must succeed."""
        command = self._words(service, [*self.stage.entry_point, *words], 0)
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=START_TIMEOUT_S).stdout

    def is_healthy(self, service: Service, port: int) -> bool:
        """Runs the image's health check."""
        command = self._words(service, self.stage.health_check, port)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _words(self, service: Service, words: Sequence[str], port: int) -> list[str]:
        assert "cap_drop" not in service or service["cap_drop"] == ["ALL"]  # which every user but root has here
        tmpfs: list[str] = service.get("tmpfs", [])  # type: ignore[assignment]
        limits = Limits(bool(service.get("read_only")), tmpfs, self._sockets)
        (inside,) = self.stage.ports
        there = [word.replace(str(inside), str(port)) for word in words]
        return self.stage.words(there, self._environment(service), limits)

    def _environment(self, service: Service) -> dict[str, str]:
        """That of the Compose file, with this machine's addresses in place of what must at least be there."""
        environment = {name: str(value) for name, value in dict(service.get("environment", {})).items()}  # type: ignore[call-overload]
        if environment:
            assert json.loads(environment["OUTBOX_BRIDGE_KAFKA"]) == {"bootstrap.servers": "kafka:9092"}
            assert environment["OUTBOX_BRIDGE_DATABASE_URL"].startswith("postgresql+psycopg://")
            environment["OUTBOX_BRIDGE_KAFKA"] = json.dumps({"bootstrap.servers": self._bootstrap})
            environment["OUTBOX_BRIDGE_DATABASE_URL"] = self._database_url
        if "OUTBOX_BRIDGE_AUTH__ADMIN_KEY" in environment:
            environment["OUTBOX_BRIDGE_AUTH__ADMIN_KEY"] = self.key
        return environment


def bridge_services() -> dict[str, Service]:
    """Those of the Compose file that run our image."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    return {name: service for name, service in services.items() if service["image"].startswith("outbox-bridge:")}


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


def await_healthy(containers: Containers, service: Service, process: Process, port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not containers.is_healthy(service, port):
        assert process.poll() is None, f"ended with {process.returncode}"
        assert time.monotonic() < deadline, f"not healthy after {START_TIMEOUT_S:.0f} s"
        time.sleep(LOOK_INTERVAL_S)
    while not is_ready(port):
        assert time.monotonic() < deadline, f"not ready after {START_TIMEOUT_S:.0f} s"
        time.sleep(LOOK_INTERVAL_S)


def is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=STOP_TIMEOUT_S):
            return True
    except HTTPError:
        return False


def publish_one(port: int, key: str) -> None:
    """Prepares and commits a transaction, with the key; waits until it is published."""
    url = f"http://127.0.0.1:{port}/v1/transactions"
    message = {"topic": TOPIC, "key": "7", "value": {"order": 7}}
    prepared = call(url, key, {"producer_group": "orders", "messages": [message]})
    url = f"{url}/{prepared['transaction_id']}"
    call(f"{url}/commit", key, {"producer_group": "orders"})
    deadline = time.monotonic() + START_TIMEOUT_S
    while (now := call(url, key))["state"] != "COMMITTED" or not now["receipts"]:
        assert time.monotonic() < deadline, f"not published after {START_TIMEOUT_S:.0f} s: {now}"
        time.sleep(LOOK_INTERVAL_S)
    print(f"{prepared['transaction_id']} was prepared, committed and published", flush=True)


def call(url: str, key: str, body: object = None) -> dict[str, object]:
    """The answer, which must be a success: a POST if there is a body."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers), timeout=STOP_TIMEOUT_S) as answer:
        members: dict[str, object] = json.load(answer)
    return members


def prove(stage: Stage, bootstrap: str) -> None:
    """Runs the report's image on what is in Kafka."""
    words = [*stage.entry_point, "--kafka", bootstrap, "--out", "/reports", "--strict"]
    subprocess.run(stage.words(words, {}, Limits(read_only=True, tmpfs=["/tmp", "/reports"])), check=True)
    print("the report has proved it", flush=True)


def stop(name: str, process: Process) -> None:
    """As `docker stop` does; a clean end is part of the promise."""
    process.terminate()
    assert process.wait(STOP_TIMEOUT_S) == 0, f"{name} ended with {process.returncode} after SIGTERM"
    print(f"{name} stopped cleanly", flush=True)


def build(name: str, lock: str, folder: Path) -> Stage:
    """What the Dockerfile says; it has all that is in the project, and of others only what is locked."""
    stage = Build(ROOT / "docker" / name, ROOT, folder / name).run()
    check_bill(stage, lock)
    check_files(stage, folder / f"{name}.wheel")
    return stage


@contextmanager
def running_stores() -> Iterator[tuple[str, str]]:
    """A Kafka and an empty database in PostgreSQL, by their addresses."""
    postgres = PostgresServer()
    try:
        with running_broker() as broker:
            yield broker.bootstrap, postgres.create()
    finally:
        postgres.close()


def run_services(containers: Containers) -> None:
    """All of the Compose file, as `docker compose up` and `down` do."""
    services = bridge_services()
    migrate = services.pop("migrate")
    for _ in range(2):  # the second time as after a restart
        containers.run_to_end(migrate, migrate["command"])  # type: ignore[arg-type]
    containers.run_to_end(migrate, ["topic", "create", TOPIC])
    ports = {name: choose_free_port() for name in services}
    with ExitStack() as stack:
        processes = {
            name: containers.run(service, service["command"], ports[name])  # type: ignore[arg-type]
            for name, service in services.items()
        }
        for process in processes.values():
            stack.callback(process.wait)
            stack.callback(process.kill)
        for name, process in processes.items():
            await_healthy(containers, services[name], process, ports[name])
            print(f"{name} is healthy and ready", flush=True)
        publish_one(ports["api"], containers.key)
        for name, process in processes.items():
            stop(name, process)


def main() -> int:
    os.umask(0o022)
    folder = Path(tempfile.mkdtemp(prefix="outbox-bridge-image-"))
    folder.chmod(0o755)
    try:
        with ThreadPoolExecutor() as beside, running_stores() as (bootstrap, database_url):
            report = beside.submit(build, "spark.Dockerfile", "spark.txt", folder)
            run_services(Containers(build("Dockerfile", "server.txt", folder), bootstrap, database_url))
            prove(report.result(), bootstrap)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
