"""One Kafka, one bridge, one built wheel and one PostgreSQL for all examples."""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bridge_process import Bridge, create_topics
from tests.support.broker import running_broker
from tests.support.example_process import ExampleProcess, build_environment, copy_without_traces, install_wheel, run
from tests.support.example_stage import EVENTS, ORDERS, MakeExample, Stage
from tests.support.faulty_front import Front, faulty_front, let_through

_LOWEST = ("fastapi==0.115.0", "pydantic==2.9.0")  # as pyproject.toml bounds them


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """A broker of this process's own: the topics' names are those of the examples."""
    with running_broker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def stage(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A bridge whose groups are asked from the first second on."""
    folder = tmp_path_factory.mktemp("stage")
    python = build_environment(folder)
    create_topics(kafka, {ORDERS: 3, EVENTS: 1})
    bridge = Bridge.create(kafka, folder)
    with bridge.serve() as api:
        yield Stage(bridge, api, python)


@pytest.fixture
def front(stage: Stage) -> Iterator[Front]:
    """A way to the bridge on which calls can be caught."""
    with faulty_front(stage.api.url) as opened:
        yield opened
        opened.fault = let_through


@pytest.fixture
def make_example(stage: Stage, tmp_path: Path) -> Iterator[MakeExample]:
    """Makes a process of an example in a copy of its folder; PYTHON in a command is that of the environment."""
    made: list[ExampleProcess] = []

    def make(example: str, command: str, **settings: str) -> ExampleProcess:
        folder = tmp_path / example
        if not folder.exists():
            copy_without_traces(example, tmp_path)
        parts = [str(stage.python) if part == "PYTHON" else part for part in command.split()]
        made.append(ExampleProcess(parts, folder, settings, tmp_path / f"{example}-{len(made)}.log"))
        return made[-1]

    yield make
    for process in made:
        process.kill()


@pytest.fixture(scope="session", params=["lowest", "newest"])
def bin_folder(request: pytest.FixtureRequest, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel; what it requires is this one's, but for the lowest FastAPI that is allowed."""
    programs = install_wheel(tmp_path_factory.mktemp(request.param), stage.wheel)
    if request.param == "lowest":
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(programs / "python")]
        run([*install, *_LOWEST])
    (site,) = programs.parent.glob("lib/python*/site-packages")
    (site / "what-it-requires.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files do not count
    return programs
