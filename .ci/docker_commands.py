"""Runs what docker/Dockerfile and docker/compose.yaml run, without Docker.

The installation is the image's own (docker/install). Commands, environments and the health check are read from the
two files; only addresses and ports are put in, of a real Kafka and a real PostgreSQL of this machine.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from bridge.broker.ports import choose_free_port
from tests.support.broker import running_broker
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[1]
PORT_INSIDE = "8780"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
LOOK_INTERVAL_S = 0.3

Service = dict[str, object]


class Image:
    """The virtual environment that would be the image's, with the environment a container would have."""

    def __init__(self, folder: Path, bootstrap: str, database_url: str) -> None:
        self.bin = folder / "app" / "bin"
        self.home = folder / "home"
        self.home.mkdir()
        self._bootstrap = bootstrap
        self._database_url = database_url
        subprocess.run([ROOT / "docker" / "install", folder / "app"], check=True)
        made = subprocess.run([self.bin / "outbox-bridge", "key", "new"], capture_output=True, text=True, check=True)
        self._key = made.stdout.strip()

    def environment_of(self, service: Service) -> dict[str, str]:
        """That of the Compose file, with this machine's addresses."""
        environment = {name: str(value) for name, value in dict(service["environment"]).items()}  # type: ignore[call-overload]
        environment["OUTBOX_BRIDGE_KAFKA"] = environment["OUTBOX_BRIDGE_KAFKA"].replace("kafka:9092", self._bootstrap)
        environment["OUTBOX_BRIDGE_DATABASE_URL"] = self._database_url
        if "OUTBOX_BRIDGE_AUTH__ADMIN_KEY" in environment:
            environment["OUTBOX_BRIDGE_AUTH__ADMIN_KEY"] = self._key
        return {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.home), **environment}

    def run(self, service: Service, port: int) -> "subprocess.Popen[bytes]":
        """Its command in the image's entry point."""
        command = [str(port) if word == PORT_INSIDE else word for word in service["command"]]  # type: ignore[attr-defined]
        words = [*entry_point(), *command]
        print("+", *words, flush=True)
        return subprocess.Popen([self.bin / words[0], *words[1:]], env=self.environment_of(service), cwd=self.home)

    def is_healthy(self, port: int) -> bool:
        """Runs the image's health check."""
        command = [word.replace(f":{PORT_INSIDE}", f":{port}") for word in health_check()]
        done = subprocess.run([self.bin / command[0], *command[1:]], capture_output=True, check=False)
        return done.returncode == 0


def instruction(name: str) -> list[str]:
    """The words of the last JSON-form instruction of this name in the Dockerfile."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return list(json.loads(re.findall(rf"{name}\s+(\[.*\])\s*$", text, re.MULTILINE)[-1]))


def entry_point() -> list[str]:
    return instruction("^ENTRYPOINT")


def health_check() -> list[str]:
    return instruction("^HEALTHCHECK.*CMD")


def bridge_services() -> dict[str, Service]:
    """Those of the Compose file that run our image."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    return {name: service for name, service in services.items() if service["image"].startswith("outbox-bridge:")}


def check_environment(services: dict[str, Service]) -> None:
    """What is replaced here must at least be there."""
    for name, service in services.items():
        environment = dict(service["environment"])  # type: ignore[call-overload]
        assert json.loads(environment["OUTBOX_BRIDGE_KAFKA"]) == {"bootstrap.servers": "kafka:9092"}, name
        assert environment["OUTBOX_BRIDGE_DATABASE_URL"].startswith("postgresql+psycopg://"), name


def await_healthy(image: Image, name: str, process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not image.is_healthy(port):
        assert process.poll() is None, f"{name} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{name} is not healthy after {START_TIMEOUT_S:.0f} s"
        time.sleep(LOOK_INTERVAL_S)
    print(f"{name} is healthy", flush=True)


def stop(name: str, process: "subprocess.Popen[bytes]") -> None:
    """As `docker stop` does; a clean end is part of the promise."""
    process.terminate()
    assert process.wait(STOP_TIMEOUT_S) == 0, f"{name} ended with {process.returncode} after SIGTERM"
    print(f"{name} stopped cleanly", flush=True)


@contextmanager
def image() -> Iterator[Image]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="outbox-bridge-image-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = PostgresServer()
        stack.callback(postgres.close)
        broker = stack.enter_context(running_broker())
        yield Image(folder, broker.bootstrap, postgres.create())


def main() -> int:
    services = bridge_services()
    check_environment(services)
    with image() as built, ExitStack() as stack:
        migrate = services.pop("migrate")
        for _ in range(2):  # the second time as after a restart
            assert built.run(migrate, 0).wait(START_TIMEOUT_S) == 0
        ports = {name: choose_free_port() for name in services}
        processes = {name: built.run(service, ports[name]) for name, service in services.items()}
        for process in processes.values():
            stack.callback(process.wait)
            stack.callback(process.kill)
        for name, process in processes.items():
            await_healthy(built, name, process, ports[name])
        for name, process in processes.items():
            stop(name, process)
    return 0


if __name__ == "__main__":
    sys.exit(main())
