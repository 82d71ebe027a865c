"""The built wheel beside a service that has packages named like ours: neither sees the other's."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.example_process import environment
from tests.support.example_stage import Stage

_TIMEOUT_S = 200

_APP = """
import os
from fastapi import FastAPI
from bridge import cross
from outbox import Bridge, Message

def create_app():
    app = FastAPI()

    @app.post("/orders")
    def place():
        with Bridge(os.environ["BRIDGE_URL"], "shop") as bridge:
            bridge.publish(Message("orders.created", value=cross()))
        return {}

    return app
"""

_TESTS = """
import api, bridge, checker, httpx2, spark, tests

def test_packages_are_the_shops():
    for package in (api, bridge, checker, spark, tests):
        assert package.__doc__ == "The shop's."

def test_order_is_announced(outbox_bridge, monkeypatch):
    from api.app import create_app
    outbox_bridge.create_topic("orders.created")
    monkeypatch.setenv("BRIDGE_URL", outbox_bridge.url)
    url = outbox_bridge.serve(create_app())
    assert httpx2.post(url + "/orders").status_code == 200
    (message,) = outbox_bridge.published("orders.created")
    assert message.value == b"over the bridge"
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    folder = tmp_path_factory.mktemp("shop")
    for name in ("api", "bridge", "checker", "spark", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('"""The shop\'s."""\n')
    with (folder / "bridge" / "__init__.py").open("a") as package:
        package.write("\ndef cross():\n    return 'over the bridge'\n")
    (folder / "api" / "app.py").write_text(_APP)
    (folder / "tests" / "test_shop.py").write_text(_TESTS)
    (folder / "conftest.py").write_text("")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return folder


def _run(command: list[str], folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, env=environment(settings), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def _check(command: list[str], folder: Path, **settings: str) -> str:
    done = _run(command, folder, **settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("way", ["pytest", "python -m pytest", "python -m pytest --import-mode=importlib tests"])
def test_tests_of_the_shop_pass(bin_folder: Path, shop: Path, way: str) -> None:
    """However they are started."""
    python = str(bin_folder / "python")
    program, *words = way.split()
    start = [python, *words] if program == "python" else [python, "-c", "import sys, pytest; sys.exit(pytest.main())"]
    said = _check([*start, "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"], shop)
    assert "2 passed" in said


def test_installation_adds_one_name(bin_folder: Path) -> None:
    """To what a service can import."""
    (site,) = bin_folder.parent.glob("lib/python*/site-packages")
    (record,) = site.glob("outbox_bridge-*.dist-info/RECORD")
    tops = {line.partition("/")[0] for line in record.read_text().splitlines()}
    assert {top for top in tops if not top.endswith(".dist-info") and top != ".."} == {"outbox"}


def test_commands_run_in_the_shops_folder(bin_folder: Path, shop: Path) -> None:
    """The shop's packages are not taken for the application's, neither by the command nor by its children."""
    command = str(bin_folder / "outbox-bridge")
    assert _check([command, "--version"], shop).startswith("outbox-bridge ")
    settings = json.loads(_check([command, "config", "show", "-o", "json"], shop))
    assert settings
    assert "usage" in _check([str(bin_folder / "python"), "-m", "outbox", "migrate", "--help"], shop).lower()


def test_demo_runs_in_the_shops_folder(stage: Stage, bin_folder: Path, shop: Path) -> None:
    """With a Kafka, a shop and a consumer of its own."""
    assert "0 lost, 0 invented, 0 twice" in _check([str(bin_folder / "outbox-bridge"), "demo"], shop)


@pytest.mark.parametrize("bin_folder", ["newest"], indirect=True)
def test_job_can_be_given_to_spark_submit(bin_folder: Path, shop: Path) -> None:
    """`report job` names a file that runs by itself."""
    job = Path(_check([str(bin_folder / "outbox-bridge"), "report", "job"], shop).strip())
    assert "--kafka" in _check([str(bin_folder / "python"), str(job), "--help"], shop)
