"""`outbox-bridge relay` killed with SIGKILL while its requests are under way, at the real bridge over HTTP."""

import threading
from pathlib import Path

import pytest

from tests.support.cli_process import environment, wait_for
from tests.support.faulty_front import Exchange, Fault, faulty_front, let_through
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.process_pool import Child, shared_pool
from tests.support.socket_bridge import socket_bridge
from tests.support.user_database import UserDatabase

KILLS, KEYS, ROWS = 3, 4, 10
# short, so that what a killed relay had is soon free
LIMITS = {"lease": 3, "batch-size": 7, "poll-interval": 0.02, "retry-delay": 0.01, "max-retry-delay": 0.05}


def start(world: OutboxWorld, url: str, folder: Path) -> Child:
    limits = [f"--{name}={limit}" for name, limit in LIMITS.items()]
    settings = environment({"OUTBOX_DATABASE_URL": world.database.url})
    command = ["api", "relay", "-g", "shop", "--bridge", url, *limits]
    return shared_pool().start(command, settings, folder, folder / "relay.log")


def kill(relay: Child) -> None:
    relay.kill()
    relay.wait(30)


def hold_after(published: threading.Event) -> Fault:
    """The bridge publishes, and its answer never comes."""

    def hold(exchange: Exchange) -> None:
        exchange.forward()
        published.set()
        exchange.gone.wait()
        exchange.cut()

    return hold


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_killed_relays_lose_double_and_reorder_nothing(user_database: UserDatabase, tmp_path: Path) -> None:
    """Each dies when the bridge has published what it sent and has not answered; the next one takes over."""
    world = OutboxWorld(user_database)
    for number in range(ROWS):
        world.enqueue(*[Sent("orders", b"%d" % key, b"%d" % number) for key in range(KEYS)])
    with socket_bridge(tmp_path, {"orders": 1}) as bridge, faulty_front(bridge.url) as front:
        for _ in range(KILLS):
            published = threading.Event()
            front.fault = hold_after(published)
            relay = start(world, front.url, tmp_path)
            assert published.wait(60)
            kill(relay)
        front.fault = let_through
        survivor = start(world, front.url, tmp_path)
        try:
            wait_for(lambda: world.count() == (0, 0), "an empty outbox")
        finally:
            kill(survivor)
        messages = bridge.read_messages("orders")
    for key in range(KEYS):
        values = [message.value for message in messages if message.key == b"%d" % key]
        assert values == [b"%d" % number for number in range(ROWS)]
    world.engine.dispose()
