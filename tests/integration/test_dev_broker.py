"""bridge.broker.dev_broker on a real Kafka: started, killed, left behind, fought over."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bridge.broker import dev_broker
from bridge.broker.dev_broker import DevBroker, StartCache
from bridge.broker.jars import fetch_jars
from bridge.broker.ports import (
    BrokerFailed,
    DataFolderInUse,
    DataFolderUnusable,
    PortTaken,
    check_port,
    choose_free_port,
    find_java,
)
from tests.support.broker import BrokerFactory

DEADLINE_S = 30.0

START_AND_WAIT = """
import sys
from contextlib import ExitStack
from pathlib import Path
from bridge.broker import dev_broker
from bridge.broker.dev_broker import DevBroker
broker = DevBroker(Path(sys.argv[1]), port=int(sys.argv[2]))
broker.start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def topics_of(broker: DevBroker) -> set[str]:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    return {name for name in client.list_topics(timeout=DEADLINE_S).topics if not name.startswith("__")}


def make_topic(broker: DevBroker, name: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


def wait_until_not_running(broker: DevBroker) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while broker.is_running:
        assert time.monotonic() < deadline, "the broker is still said to run"
        time.sleep(0.05)


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    return tmp_path / "my data, 订单"  # as people name theirs


@pytest.fixture
def other_run(data_folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A process that keeps a broker in the data folder; the broker's pid; its port."""
    port = choose_free_port()
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT, str(data_folder), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield process, pid, port
        process.kill()
        process.wait()
        wait_until_gone(pid)


def test_data_outlive_stop_and_kill(broker_factory: BrokerFactory) -> None:
    """A topic is still there after a clean stop and after SIGKILL, on the same port."""
    broker = broker_factory()
    bootstrap = broker.bootstrap
    make_topic(broker, "orders")
    broker.stop()
    assert not broker.is_running
    broker.start()
    make_topic(broker, "credits")
    broker.kill()
    broker.start()
    assert topics_of(broker) == {"orders", "credits"}
    assert broker.bootstrap == bootstrap


def cluster_id_of(broker: DevBroker) -> str:
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=DEADLINE_S).cluster_id
    assert found
    return found


def test_broker_that_ended_in_peace_makes_the_next_start_short(tmp_path: Path) -> None:
    """It leaves Kafka's classes and an empty folder beside the jars; one that is killed leaves no half of them."""
    jars = Path(shutil.copytree(fetch_jars(), tmp_path / "kafka"))
    first = DevBroker(tmp_path / "first", port=None, jar_folder=jars)
    first.start()
    first.kill()
    assert list(tmp_path.glob("*.jsa")) == []
    first.start()
    cluster_id = cluster_id_of(first)
    first.stop(10 * DEADLINE_S)
    (classes,) = tmp_path.glob("*.jsa")
    second = DevBroker(tmp_path / "second", port=None, jar_folder=jars)
    second.start()
    assert second.pid is not None
    assert str(classes) in {Path(file.path).as_posix() for file in psutil.Process(second.pid).memory_maps()}
    assert cluster_id_of(second) != cluster_id
    second.stop()


def test_classes_that_do_not_fit_are_passed_over(tmp_path: Path) -> None:
    """A file that is none, or of another Java, costs the short start and nothing else."""
    jars = Path(shutil.copytree(fetch_jars(), tmp_path / "kafka"))
    StartCache(jars, find_java()).classes.write_bytes(b"no classes" * 1_000)
    broker = DevBroker(tmp_path / "data", port=None, jar_folder=jars)
    broker.start()
    assert topics_of(broker) == set()
    broker.stop()


def test_broker_starts_in_turkish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's language: Java reads it from LANG, where it is installed."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=tr -Duser.country=TR")
    broker = DevBroker(tmp_path / "data", port=None)
    broker.start()
    assert topics_of(broker) == set()
    broker.stop()


def test_paused_broker_can_be_stopped(broker_factory: BrokerFactory) -> None:
    """SIGTERM alone would wait for ever; pause and resume leave it usable."""
    broker = broker_factory()
    broker.pause()
    broker.resume()
    assert topics_of(broker) == set()
    broker.pause()
    pid = broker.pid
    broker.stop()
    assert pid is not None
    wait_until_gone(pid)


def test_broker_that_stood_still_does_not_take_itself_for_dead(broker_factory: BrokerFactory) -> None:
    """Without a leader for a moment, the marker of a Kafka transaction would be lost (KAFKA-20734)."""
    broker = broker_factory()
    broker.pause()
    time.sleep(4)  # longer than sessions that Kafka's tests use
    broker.resume()
    assert topics_of(broker) == set()
    time.sleep(1)
    assert "Fencing broker" not in broker.output_file.read_text()


def test_old_session_is_over_when_the_broker_starts_after_a_kill(broker_factory: BrokerFactory) -> None:
    """Written down, not only said: else its partitions have a leader that is not there, and lose it as it registers."""
    broker = broker_factory()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic("t", 3, 1)])["t"].result(30)
    for _ in range(3):
        broker.kill()
        before = broker.output_file.stat().st_size
        broker.start()
        said = broker.output_file.read_text()[before:]
        fenced, started = said.index("handleBrokerFenced: changing 3 "), said.rindex("Performing controller activation")
        assert fenced < started


def test_broker_that_died_by_itself_can_be_started_again(broker_factory: BrokerFactory) -> None:
    """The object must not believe that it still holds a broker, nor stumble over its own lock."""
    broker = broker_factory()
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    wait_until_not_running(broker)
    broker.start()
    assert topics_of(broker) == set()


def test_broker_dies_with_its_parent(other_run: tuple[subprocess.Popen[bytes], int, int]) -> None:
    """SIGKILL of the process that started it leaves no broker behind."""
    process, pid, _ = other_run
    process.kill()
    wait_until_gone(pid)


def test_left_over_broker_is_stopped_by_the_next_start(
    other_run: tuple[subprocess.Popen[bytes], int, int], data_folder: Path
) -> None:
    """Even if everything but the broker was killed: same folder, same port, no word needed."""
    process, pid, port = other_run
    for child in psutil.Process(process.pid).children():
        if child.pid != pid:
            child.kill()  # the watcher that would have stopped the broker
    process.kill()
    process.wait()
    assert psutil.pid_exists(pid)
    broker = DevBroker(data_folder, port=port)
    broker.start()
    try:
        wait_until_gone(pid)
        assert topics_of(broker) == set()
    finally:
        broker.kill()


def test_running_broker_is_left_alone(other_run: tuple[subprocess.Popen[bytes], int, int], data_folder: Path) -> None:
    """A second run must not stop the first one's broker, nor Ctrl-C: the bridge stops Kafka itself, last."""
    process, pid, _ = other_run
    with pytest.raises(DataFolderInUse) as caught:
        DevBroker(data_folder, port=None).start()
    assert str(data_folder) in str(caught.value)
    assert psutil.pid_exists(pid)
    # a terminal signals its foreground group, which is never one of another session
    assert os.getsid(pid) != os.getsid(process.pid)


def test_remains_of_a_crash_do_no_harm(data_folder: Path) -> None:
    """A pid that is another program's by now is not stopped; a half-formatted folder is begun anew."""
    (data_folder / "log.new" / "rubbish").mkdir(parents=True)
    (data_folder / "broker.pid").write_text(f"{os.getpid()}\n")
    broker = DevBroker(data_folder, port=None)
    broker.start()
    broker.kill()
    assert not (data_folder / "log.new").exists()


def test_taken_port_is_named(data_folder: Path) -> None:
    """Which port, which process, what to do; and the folder is free again."""
    port = choose_free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTaken) as caught:
        DevBroker(data_folder, port=port).start()
    assert f"port {port} is in use by process {os.getpid()}" in str(caught.value)
    assert "--kafka" in caught.value.remedy
    assert not (data_folder / "broker.pid").exists()


@pytest.mark.parametrize("which", [0, 1], ids=["of clients", "of the controller"])
def test_port_taken_between_choice_and_start_is_replaced(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Where none was asked for, one that is lost before Kafka listens is no failure."""
    checked: list[int] = []
    with ExitStack() as thieves:

        def check_then_steal(port: int, remedy: str) -> None:
            check_port(port, remedy)
            if len(checked) == which:
                thieves.enter_context(socket.create_server(("127.0.0.1", port)))
            checked.append(port)

        monkeypatch.setattr(dev_broker, "check_port", check_then_steal)
        broker = DevBroker(data_folder, port=None)
        thieves.callback(broker.kill)
        broker.start()
        assert broker.port not in checked[:2]
        count = len(checked)
        broker.stop()
        broker.start()
        assert broker.port == checked[count], "a port that was told must stay"


def test_failed_start_shows_what_kafka_said(data_folder: Path) -> None:
    """The reason stands in the message, the log's place in the remedy, and nothing runs on."""
    broker = DevBroker(data_folder, port=None, settings={"num.io.threads": "many"})
    with pytest.raises(BrokerFailed, match=r"num\.io\.threads"):
        broker.start()
    assert not broker.is_running


def test_unusable_data_folder_has_its_own_error(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderUnusable):
        DevBroker(tmp_path / "file" / "data", port=None).start()
