"""The demo, as a newcomer starts it."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from api.cli import demo as story
from api.cli.demo_environment import DemoEnvironment
from bridge.broker.ports import choose_free_port
from tests.support.cli_process import DEADLINE_S, NOBODYS_PROXY, environment, is_gone, run_command, wait_for


def links_in(text: str) -> list[str]:
    return re.findall(r"http://127\.0\.0\.1:\d+/v1/transactions/[0-9a-v]{28}/timeline", text)


def test_demo_tells_its_story_and_is_right(tmp_path: Path) -> None:
    """One committed, one rolled back, one rescued by a back-check; plain text when piped."""
    done = run_command("demo", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "records COMMIT, as its producer asked" in done.stdout
    assert "records ROLLBACK, as its producer asked" in done.stdout
    assert "is dead (SIGKILL)" in done.stdout
    assert "records COMMIT, as the shop answered" in done.stdout
    assert "0 lost, 0 invented, 0 twice" in done.stdout
    assert len(links_in(done.stdout)) == 3
    assert "\x1b" not in done.stdout


def test_broken_demo_names_what_is_missing(tmp_path: Path) -> None:
    """A verdict that cannot fail would prove nothing."""
    done = run_command("demo", "--break", folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 lost, 0 invented, 0 twice" in done.stdout
    assert "lost: A-3" in done.stdout


def test_demo_leaves_nothing_on_a_cluster_of_somebodys(tmp_path: Path, kafka: str) -> None:
    """Its topics are its own, and gone afterwards. Proxies of the environment are for what is farther away."""
    admin = AdminClient({"bootstrap.servers": kafka})
    before = set(admin.list_topics(timeout=30).topics)
    done = run_command("demo", "--kafka", kafka, folder=tmp_path, settings=NOBODYS_PROXY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 invented, 0 twice" in done.stdout
    left = set(admin.list_topics(timeout=30).topics) - before
    assert {name for name in left if name.startswith(("demo-", "RMQ_SYS_TRANS", "TRANS_CHECK"))} == set()


def test_demo_stays_with_a_door_for_clients_of_rocketmq(tmp_path: Path) -> None:
    """Its address and a topic that they can name; SIGTERM ends it, and nothing was wrong."""
    with subprocess.Popen(
        [sys.executable, "-m", "api", "demo", "--rocketmq"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        told: list[str] = []
        try:
            while "namesrvAddr" not in (line := demo.stdout.readline()):
                assert line, "".join(told)
                told.append(line)
            assert "topic orders-paid" in line
            head = b'{"code":105,"opaque":1,"extFields":{"topic":"orders-paid"}}'
            with socket.create_connection(("127.0.0.1", 9876), timeout=10) as door:
                door.sendall(struct.pack(">ii", 4 + len(head), len(head)) + head)
                assert b"brokerAddrs" in door.recv(65_536)
        finally:
            demo.terminate()
        assert demo.wait(DEADLINE_S) == 0
    assert "0 lost, 0 invented, 0 twice" in "".join(told)


def test_demo_says_that_a_cluster_is_not_there(tmp_path: Path) -> None:
    """Before anything is started."""
    done = run_command("demo", "--kafka", f"127.0.0.1:{choose_free_port()}", folder=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert "Kafka cannot be used now" in done.stderr


def test_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL in the middle: Kafka, bridge, shop and consumer end all the same."""
    with subprocess.Popen(
        [sys.executable, "-m", "api", "demo"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        while "takes order A-1" not in (line := demo.stdout.readline()):
            assert line, "the demo ended"
        family = [child.pid for child in psutil.Process(demo.pid).children(recursive=True)]
        assert len(family) >= 4
        os.kill(demo.pid, signal.SIGKILL)
        demo.wait(DEADLINE_S)
        wait_for(lambda: all(is_gone(pid) for pid in family), "the end of all processes")


def test_demo_opens_elsewhere_when_its_ports_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the bridge's, then the shop's, after they were chosen: nothing to trouble a newcomer with."""
    chosen: list[int] = []
    with ExitStack() as thieves:

        def choose_and_lose() -> int:
            port = choose_free_port()
            if len(chosen) in {0, 3}:
                thieves.enter_context(socket.create_server(("127.0.0.1", port)))
            chosen.append(port)
            return port

        monkeypatch.setattr(story, "choose_free_port", choose_and_lose)
        with DemoEnvironment() as stage:
            assert story.DemoScript(stage, is_broken=False).tell()
    assert len(chosen) == 6
