"""docker/: what the image and the Compose file run is in the command line. `.ci/docker_commands.py` runs them."""

import json
import re
import socket
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
import typer.main
import yaml

from api.cli.main import app
from tests.support.source_tree import ROOT

DOCKERFILES = ("Dockerfile", "spark.Dockerfile")


def dockerfile(name: str = "Dockerfile") -> str:
    return (ROOT / "docker" / name).read_text().replace("\\\n", " ")


COMPOSE_FILES = ("compose.yaml", "compose.secured.yaml")


def services_of(file: str) -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker" / file).read_text())["services"]
    return services


def bridge_services() -> dict[str, dict[str, Any]]:
    return {
        f"{file}: {name}": service
        for file in COMPOSE_FILES
        for name, service in services_of(file).items()
        if service["image"].startswith("outbox-bridge:")
    }


def commands() -> dict[str, list[str]]:
    """Every argument list given to the entry point `outbox-bridge`, by where it stands."""
    by_default = json.loads(re.findall(r"^CMD (\[.*\])$", dockerfile(), re.MULTILINE)[-1])
    return {"Dockerfile": by_default, **{name: service["command"] for name, service in bridge_services().items()}}


@pytest.mark.parametrize("place", sorted(commands()))
def test_every_command_exists_with_its_options(place: str) -> None:
    """A renamed option would otherwise be found by the first user of the image."""
    name, *words = commands()[place]
    known = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {option for parameter in known.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_nothing_is_published_beyond_the_hosts_loopback(file: str) -> None:
    """Both are for trying out; the plain one's Kafka asks nobody who he is, and keys travel in plain text."""
    published = [port for service in services_of(file).values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def health_checks() -> dict[str, list[str]]:
    """Those of the image and of services that have their own, by where they stand."""
    of_image = json.loads(re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", dockerfile(), re.MULTILINE)[-1])
    own = {name: service.get("healthcheck", {}).get("test", [])[1:] for name, service in bridge_services().items()}
    return {"Dockerfile": of_image, **{name: words for name, words in own.items() if words}}


class Healthy(BaseHTTPRequestHandler):
    """A port for metrics whose process is well."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()


@pytest.mark.parametrize("place", sorted(health_checks()))
def test_health_check_asks_no_proxy(place: str) -> None:
    """Docker tells every container of its client's proxies; behind one, a bridge that is well was told to be ill."""
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        asked = Thread(target=server.handle_request)
        asked.start()
        port = str(server.server_port)
        _, *words = [word.replace("8790", port) for word in health_checks()[place]]
        environment = {"http_proxy": "http://127.0.0.1:9", "OUTBOX_BRIDGE_HTTP__METRICS_PORT": port}
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            socket.create_connection(("127.0.0.1", server.server_port)).close()  # nobody asked: ends the wait
        asked.join()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", DOCKERFILES)
def test_image_does_not_run_as_root(name: str) -> None:
    """The last word on the user is a number that is not 0."""
    assert int(re.findall(r"^USER (\d+)$", dockerfile(name), re.MULTILINE)[-1]) > 0


@pytest.mark.parametrize("name", DOCKERFILES)
def test_image_gets_every_file_its_installation_needs(name: str) -> None:
    """What a wheel is made of, and the rest that the Dockerfile copies, is let through by .dockerignore."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile(name), re.MULTILINE)
    copied = {name.rstrip("/") for line in lines for name in line.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]) <= copied
    assert copied == let_through
