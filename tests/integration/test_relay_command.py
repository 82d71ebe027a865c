"""`outbox-bridge relay` as a user types it: a real process, a real database file, a real bridge over HTTP."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from bridge.broker.ports import choose_free_port
from outbox.tables import make_outbox_table
from tests.support.cli_process import DEADLINE_S, environment, run_command, wait_for
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.socket_bridge import SocketBridge, socket_bridge
from tests.support.user_database import UserDatabase


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBridge]:
    with socket_bridge(tmp_path_factory.mktemp("bridge"), {"orders": 1, "outbox.event.order": 1}) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OutboxWorld]:
    made = OutboxWorld(UserDatabase("sqlite", f"sqlite:///{tmp_path / 'shop.db'}", ""))
    yield made
    made.engine.dispose()


def relay(folder: Path, bridge: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    settings = {"OUTBOX_DATABASE_URL": f"sqlite:///{folder / 'shop.db'}", "OUTBOX_BRIDGE_URL": bridge}
    return run_command("relay", *arguments, folder=folder, settings=settings)


def test_relay_publishes_what_is_there_and_tells_what_was_refused(
    world: OutboxWorld, bridge: SocketBridge, tmp_path: Path
) -> None:
    """Then the refused row is listed with the bridge's words, tried again, discarded, and known no more."""
    before = len(bridge.read_values("orders"))
    (bad,) = world.enqueue(Sent("no.such.topic", b"a", b"0"))
    world.enqueue(*[Sent("orders", b"%d" % (n % 3), b"%d" % n) for n in range(9)])
    done = relay(tmp_path, bridge.url, "-g", "shop", "--once", "--batch-size", "4")
    assert (done.returncode, sorted(bridge.read_values("orders")[before:])) == (1, [b"%d" % n for n in range(9)])
    told = json.loads(done.stdout)
    assert {name: told[name] for name in ("published", "parked", "delayed")} == {
        "published": 9,
        "parked": 1,
        "delayed": 0,
    }
    (listed,) = json.loads(relay(tmp_path, bridge.url, "parked", "list", "-o", "json").stdout)
    assert (listed["row_id"], listed["reason"][:17]) == (bad, "422 unknown-topic")
    assert relay(tmp_path, bridge.url, "parked", "retry", bad).returncode == 0
    assert relay(tmp_path, bridge.url, "-g", "shop", "--once").returncode == 1
    assert relay(tmp_path, bridge.url, "parked", "discard", "--all").returncode == 2
    assert relay(tmp_path, bridge.url, "parked", "discard", "--all", "--yes").returncode == 0
    assert relay(tmp_path, bridge.url, "parked", "discard", bad, "--yes").returncode == 3
    assert world.count() == (0, 0)


def test_rows_that_earlier_runs_have_left_are_left(world: OutboxWorld, bridge: SocketBridge, tmp_path: Path) -> None:
    """Nothing can be claimed: one is parked, one is behind it, one waits for its next try. Not all is published."""
    world.enqueue(Sent("no.such.topic", b"a", b"0"), Sent("orders", b"a", b"1"))
    assert relay(tmp_path, bridge.url, "-g", "shop", "--once").returncode == 1
    again = relay(tmp_path, bridge.url, "-g", "shop", "--once")
    assert (again.returncode, "1 rows refused, 1 left" in again.stderr) == (1, True), again.stderr
    with world.engine.begin() as conn:  # by hand, which leaves its lease
        conn.execute(sa.delete(world.table).where(world.table.c.topic == "no.such.topic"))
    assert relay(tmp_path, bridge.url, "-g", "shop", "--once").returncode == 0
    (slow,) = world.enqueue(Sent("orders", b"a", b"2"))
    in_an_hour_ms = time.time_ns() // 1_000_000 + 3_600_000
    lease = {"source": "outbox", "row_id": slow, "state": "waiting", "free_ms": in_an_hour_ms, "attempts": 1}
    with world.engine.begin() as conn:
        conn.execute(sa.insert(world.leases).values(lease))
    assert relay(tmp_path, bridge.url, "-g", "shop", "--once").returncode == 1


def test_interrupted_relay_ends_well(world: OutboxWorld, bridge: SocketBridge, tmp_path: Path) -> None:
    """Rows that come while it runs are published; at the signal it reports and leaves no lease behind."""
    popen = subprocess.Popen(
        [sys.executable, "-m", "api", "relay", "-g", "shop", "--bridge", bridge.url, "--poll-interval", "0.05"],
        cwd=tmp_path,
        env=environment({"OUTBOX_DATABASE_URL": world.database.url}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with popen:
        world.enqueue(*[Sent("orders", b"k", b"%d" % n) for n in range(5)])
        wait_for(lambda: world.count() == (0, 0), "an empty outbox")
        popen.send_signal(signal.SIGTERM)
        out, errors = popen.communicate(timeout=DEADLINE_S)
    assert popen.returncode == 0, errors
    assert json.loads(out.splitlines()[-1])["published"] == 5


def test_second_ctrl_c_waits_for_no_answer(world: OutboxWorld, tmp_path: Path) -> None:
    """The bridge has the request and says nothing: the first waits for it, the second does not, nor for its row."""
    world.enqueue(Sent("orders", b"k", b"v"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "api",
                "relay",
                "-g",
                "shop",
                "--bridge",
                f"http://127.0.0.1:{silent.getsockname()[1]}",
            ],
            cwd=tmp_path,
            env=environment({"OUTBOX_DATABASE_URL": world.database.url}),
            stderr=subprocess.PIPE,
            text=True,
        )
        with popen, silent.accept()[0]:
            while popen.poll() is None:
                popen.send_signal(signal.SIGINT)
                time.sleep(0.5)
            assert popen.stderr is not None
            assert "put_off" not in popen.stderr.read()
    assert popen.returncode == 130
    assert world.count() == (1, 1)


def test_file_describes_a_table_of_somebody_else(bridge: SocketBridge, tmp_path: Path) -> None:
    """Columns by name, headers, a form of topics."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    world = OutboxWorld(UserDatabase("sqlite", f"sqlite:///{tmp_path / 'shop.db'}", ""))
    with engine.begin() as conn:
        conn.execute(
            sa.text(
                "CREATE TABLE events (nr INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, who TEXT, body TEXT, trace TEXT)"
            )
        )
        conn.execute(sa.text("INSERT INTO events VALUES (1, 'order', '7', '{}', 't1')"))
    engine.dispose()
    (tmp_path / "events.toml").write_text(
        'table = "events"\n[columns]\nkey = "nr"\nsequence = "nr"\ntopic = "kind"\ntopic_format = "outbox.event.{}"\n'
        'message_key = "who"\nvalue = "body"\n[columns.headers]\ntrace = "trace"\n'
    )
    done = relay(tmp_path, bridge.url, "-g", "shop", "--source", "events.toml", "--once")
    assert done.returncode == 0, done.stderr
    (message,) = bridge.read_messages("outbox.event.order")
    assert (message.key, message.value, message.headers[0]) == (b"7", b"{}", ("trace", b"t1"))
    world.engine.dispose()


def test_published_rows_are_moved_to_the_archive_that_is_named(
    world: OutboxWorld, bridge: SocketBridge, tmp_path: Path
) -> None:
    """For those who keep what they have said."""
    archive = make_outbox_table(sa.MetaData(), "said")
    archive.create(world.engine)
    ids = world.enqueue(Sent("orders", b"k", b"kept"))
    assert relay(tmp_path, bridge.url, "-g", "shop", "--once", "--archive", "said", "--lease", "3").returncode == 0
    with world.engine.connect() as conn:
        assert list(conn.scalars(sa.select(archive.c.message_id))) == ids
    assert world.count() == (0, 0)


def test_lost_bridge_is_unreachable(world: OutboxWorld, tmp_path: Path) -> None:
    """The rows stay, and no try is charged to them."""
    world.enqueue(Sent("orders", b"k"))
    done = relay(tmp_path, "http://127.0.0.1:1", "-g", "shop", "--once")
    assert (done.returncode, "--bridge" in done.stderr, world.count()[0]) == (5, True, 1)


def test_relay_tells_how_it_is(world: OutboxWorld, bridge: SocketBridge, tmp_path: Path) -> None:
    """Alive and ready, what it has published, and what is left; a database that is gone makes it not ready."""
    world.enqueue(Sent("no.such.topic", b"a", b"0"))
    world.enqueue(*[Sent("orders", b"k", b"%d" % n) for n in range(3)])
    port = choose_free_port()
    popen = subprocess.Popen(
        [sys.executable, "-m", "api", "relay", "-g", "shop", "--bridge", bridge.url, "--health", str(port)],
        cwd=tmp_path,
        env=environment({"OUTBOX_DATABASE_URL": world.database.url}),
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def metrics() -> dict[str, str]:
        try:
            lines = httpx2.get(f"{url}/metrics").text.splitlines()
        except httpx2.TransportError:
            return {}
        return dict(line.split() for line in lines if not line.startswith("#"))

    try:
        wait_for(lambda: metrics().get("outbox_relay_published_rows_total") == "3", "published")
        wait_for(lambda: metrics()["outbox_relay_parked_rows"] == "1", "parked")
        told = metrics()
        assert (told["outbox_relay_waiting_rows"], told["outbox_relay_database_up"]) == ("0", "1")
        assert [httpx2.get(f"{url}/{name}").status_code for name in ("livez", "readyz", "other")] == [200, 200, 404]
        with world.engine.begin() as conn:
            conn.execute(sa.text(f"ALTER TABLE {world.table.name} RENAME TO gone"))
        assert [httpx2.get(f"{url}/{name}").status_code for name in ("livez", "readyz")] == [200, 503]
        assert metrics()["outbox_relay_database_up"] == "0"
    finally:
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(DEADLINE_S) == 0


def test_health_needs_a_port(world: OutboxWorld, bridge: SocketBridge, tmp_path: Path) -> None:
    """One that is none is a usage error."""
    done = relay(tmp_path, bridge.url, "-g", "shop", "--health", "here")
    assert (done.returncode, "--health here cannot be used" in done.stderr) == (2, True)


def test_relay_goes_on_where_its_reports_cannot_be_written(
    world: OutboxWorld, bridge: SocketBridge, tmp_path: Path
) -> None:
    """A full disk under its log holds no order back: that is told once. Nobody who reads them is its end."""
    before = len(bridge.read_values("orders"))

    def publish(value: bytes) -> None:
        world.enqueue(Sent("orders", b"a", value))
        wait_for(lambda: value in bridge.read_values("orders")[before:], f"{value!r}")

    words = [sys.executable, "-m", "api", "relay", "-g", "shop", "--bridge", bridge.url, "-o", "jsonl"]
    process: dict[str, Any] = {"cwd": tmp_path, "env": environment({"OUTBOX_DATABASE_URL": world.database.url})}
    with Path("/dev/full").open("wb") as full, subprocess.Popen(words, stdout=full, stderr=PIPE, **process) as relay:
        assert relay.stderr is not None
        publish(b"1")
        while b"the relay goes on" not in (line := relay.stderr.readline()):
            assert line, "it ended"
        publish(b"2")
        relay.send_signal(signal.SIGTERM)
        assert (relay.wait(DEADLINE_S), relay.stderr.read()) == (0, b"")
    with subprocess.Popen(words, stdout=PIPE, stderr=PIPE, **process) as relay:
        assert relay.stdout is not None
        relay.stdout.close()
        publish(b"3")
        assert relay.wait(DEADLINE_S) == 1
