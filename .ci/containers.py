"""What compose.yaml and the chart say of processes in our image, and these processes, without an engine.

Put in are only this machine's addresses and free ports, and in the files of Secrets what these addresses need.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from chart import render
from image import Limits, Stage

from bridge.broker.ports import choose_free_port

ROOT = Path(__file__).parents[1]
END_TIMEOUT_S = 90.0
SOCKET_FOLDER = "/run/postgresql"

Process = subprocess.Popen[bytes]


@dataclass(slots=True)
class Database:
    """A database of PostgreSQL on a socket of this machine, as containers see it."""

    url: str
    sockets: dict[str, Path]

    @classmethod
    def seen_from(cls, url: str) -> "Database":
        """`url`: as this machine sees it."""
        address, folder = url.split("host=")
        sockets = {f"{SOCKET_FOLDER}/{path.name}": path for path in Path(folder).glob(".s.PGSQL.*[0-9]")}
        return cls(f"{address}host={SOCKET_FOLDER}", sockets)


@dataclass(slots=True)
class Container:
    """One process. `ports`: which ones of this machine stand for its own; `probed`: where it says that it is ready."""

    stage: Stage
    arguments: list[str]
    environment: dict[str, str]
    limits: Limits
    ports: dict[int, int] = field(default_factory=dict)
    health_check: list[str] = field(default_factory=list)
    probed: int = 8790

    def start(self) -> Process:
        """Its command in the image's entry point."""
        print("+", *self.arguments, flush=True)
        return subprocess.Popen(self.words([*self.stage.entry_point, *self.arguments]))

    def run(self, *arguments: str) -> str:
        """What its own command, or another one, prints; it must succeed."""
        words = self.words([*self.stage.entry_point, *(arguments or self.arguments)])
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=END_TIMEOUT_S).stdout

    def is_healthy(self) -> bool:
        """Runs its health check."""
        return subprocess.run(self.words(self.health_check), capture_output=True, check=False).returncode == 0

    def words(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words in it."""
        environment = {name: self._with_ports(value) for name, value in self.environment.items()}
        return self.stage.words([self._with_ports(word) for word in words], environment, self.limits)

    def _with_ports(self, text: str) -> str:
        for inside, outside in self.ports.items():
            text = text.replace(str(inside), str(outside))
        return text


def read_compose(
    stage: Stage, name: str, put_in: Mapping[str, str], database: Database, secrets: Path | None = None
) -> dict[str, Container]:
    """The services of a file of docker/ that run our image. `put_in`: for words that stand in their environments.

    `secrets`: the folder with the files of its secrets.
    """
    services = yaml.safe_load((ROOT / "docker" / name).read_text())["services"]
    found = {}
    for service_name, service in services.items():
        if service["image"].startswith("outbox-bridge:"):
            assert service["cap_drop"] == ["ALL"]  # as it is here for every user but root
            environment = {name: put_all_in(put_in, str(value)) for name, value in service["environment"].items()}
            files = {f"/run/secrets/{file}": Path(f"{secrets}/{file}") for file in service.get("secrets", ())}
            limits = Limits(service["read_only"], service["tmpfs"], {**database.sockets, **files})
            probed = int(environment.get("OUTBOX_BRIDGE_HTTP__METRICS_PORT", stage.ports[0]))
            health_check = service.get("healthcheck", {}).get("test", [])[1:] or stage.health_check
            ports = {port: choose_free_port() for port in {*stage.ports, probed}}
            container = Container(stage, service["command"], environment, limits, ports, health_check, probed)
            found[service_name] = container
    return found


def put_all_in(put_in: Mapping[str, str], text: str) -> str:
    """Each word in place of another."""
    for word, other in put_in.items():
        text = text.replace(word, other)
    return text


def read_chart(
    stage: Stage, values: dict[str, Any], database: Database, secrets: Mapping[str, Mapping[str, bytes]], folder: Path
) -> dict[str, Container]:
    """The pods of the chart, by role, with these Secrets by their names, in files of `folder`."""
    found = {}
    for manifest in render(values):
        if manifest["kind"] in {"Deployment", "Job"}:
            pod = manifest["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert pod["securityContext"]["runAsUser"] == int(stage.user)
            environment = {one["name"]: one["value"] for one in container["env"]}
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
            mounts = {
                path: write_secret(volume["secret"], secrets, folder / container["name"] / volume["name"], pod)
                for path, volume in places.items()
                if "secret" in volume
            }
            tmpfs = [path for path, volume in places.items() if "emptyDir" in volume]
            read_only = container["securityContext"]["readOnlyRootFilesystem"]
            limits = Limits(read_only, tmpfs, {**mounts, **database.sockets})
            ports = {8780: choose_free_port()} | {
                port["containerPort"]: choose_free_port() for port in container.get("ports", ())
            }
            found[container["name"]] = Container(stage, container["args"], environment, limits, ports)
    return found


def write_secret(
    volume: Mapping[str, Any], secrets: Mapping[str, Mapping[str, bytes]], folder: Path, pod: Mapping[str, Any]
) -> Path:
    """The files as a pod gets them: of root, for the pod's group."""
    folder.mkdir(parents=True)
    known = secrets[volume["secretName"]]
    for item in volume.get("items") or [{"key": key, "path": key} for key in known]:
        path = folder / item["path"]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(known[item["key"]])
        os.chown(path, 0, pod["securityContext"]["fsGroup"])
        path.chmod(volume["defaultMode"])
    return folder
