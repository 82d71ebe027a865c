"""The seven holes of the original: one client script each, shown on a model of its way, absent on the real bridge."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.bridge_process import Bridge
from tests.support.kafka_proxy import proxied_broker
from tests.support.message_systems import BridgeSystem, BridgeWorld, MessageSystem, RocketSystem, Told


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeWorld]:
    """A bridge and its Kafka for all stories of this file."""
    folder: Path = tmp_path_factory.mktemp("holes")
    with proxied_broker() as kafka:
        running = BridgeWorld(kafka, Bridge.create(kafka.direct, folder, queues=1))
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def rocket() -> RocketSystem:
    """The model, empty."""
    return RocketSystem()


@pytest.fixture
def bridge(world: BridgeWorld, request: pytest.FixtureRequest) -> Iterator[BridgeSystem]:
    """The bridge, with a topic of this test's own."""
    system = BridgeSystem(world, request.node.name)
    try:
        yield system
    finally:
        system.close()


def settle(system: MessageSystem) -> list[str]:
    """What consumers have when everything that came before has been decided."""
    assert system.commit(system.prepare("canary", "last")) is Told.DONE
    assert system.wait_until(lambda: "last" in system.visible())
    return [text for text in system.visible() if text != "last"]


def outlast_checks(system: MessageSystem) -> None:
    """Waits until a transaction that is younger than all others has been asked about twice."""
    system.join("canary", "UNKNOWN")
    canary = system.prepare("canary", "canary")
    assert system.wait_until(lambda: system.asked(canary) == 2)


def is_seen(system: MessageSystem, read: Callable[[], list[str]]) -> bool:
    return system.wait_until(lambda: "a" in read())


def test_double_commit_publishes_once(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 1: the half is found by position, its end never looked at. Here the first end wins (D, F)."""

    def script(system: MessageSystem) -> tuple[list[Told], list[str]]:
        twice, turned = system.prepare("shop", "a"), system.prepare("shop", "b")
        told = [system.commit(twice), system.commit(twice), system.rollback(turned), system.commit(turned)]
        return told, settle(system)

    assert script(rocket) == ([Told.DONE] * 4, ["a", "a", "b"])
    assert script(bridge) == ([Told.DONE, Told.DONE, Told.DONE, Told.REFUSED], ["a"])


def test_death_between_message_and_its_mark_publishes_once(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 2: publish and op marker are two writes. Here they are one Kafka transaction (D)."""

    def script(system: MessageSystem) -> list[str]:
        system.join("shop", "COMMIT")
        system.commit_and_die(system.prepare("shop", "a"))
        outlast_checks(system)
        return system.visible()

    assert script(rocket) == ["a", "a"]
    assert script(bridge) == ["a"]


def test_acknowledged_end_is_not_checked_after_a_crash(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 3: op markers wait in memory. Here an end is durable before it is answered (K)."""

    def script(system: MessageSystem) -> tuple[Told, Told, int]:
        system.join("shop", "UNKNOWN")
        committed, dropped = system.prepare("shop", "a"), system.prepare("shop", "b")
        told = system.commit(committed), system.rollback(dropped)
        system.crash()
        outlast_checks(system)
        return *told, system.asked(committed) + system.asked(dropped)

    assert script(rocket) == (Told.DONE, Told.DONE, 4)
    assert script(bridge) == (Told.DONE, Told.DONE, 0)


def test_commit_that_is_not_safe_is_not_acknowledged(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 4: an unflushed write counts as success. Here it is unknown, and repeating the call tells (A, L)."""

    def script(system: MessageSystem) -> tuple[Told, Told, list[str]]:
        transaction = system.prepare("ghost", "a")  # whom nobody will ever answer for
        told = system.commit_unsafely(transaction)
        in_the_end = told
        if told is Told.UNKNOWN:
            assert system.wait_until(lambda: system.commit(transaction) is Told.DONE)
            in_the_end = Told.DONE
        return told, in_the_end, settle(system)

    assert script(rocket) == (Told.DONE, Told.DONE, [])
    assert script(bridge) == (Told.UNKNOWN, Told.DONE, ["a"])


def test_failed_discard_keeps_the_message(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 5: the discard's result is ignored, the cursor moves on. Here parking is one Kafka transaction (S, L)."""

    def script(system: MessageSystem) -> tuple[int, bool, int]:
        system.join("shop", "UNKNOWN")
        system.break_discards()
        transaction = system.prepare("shop", "a")
        assert system.wait_until(lambda: system.asked(transaction) == 2)
        system.repair_discards()
        is_kept = is_seen(system, system.discarded)
        return system.asked(transaction), is_kept, system.discarded().count("a")

    assert script(rocket) == (2, False, 0)
    assert script(bridge) == (2, True, 1)


def test_round_without_a_producer_uses_up_no_check(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 6: the counter rises before anyone is chosen. Here only an answer counts (K, S)."""

    def script(system: MessageSystem) -> tuple[bool, int]:
        transaction = system.prepare("shop", "a")
        outlast_checks(system)  # as many rounds as there are checks, and nobody of the shop was there
        system.join("shop", "COMMIT")
        return is_seen(system, system.visible), system.asked(transaction)

    assert script(rocket) == (False, 0)
    assert script(bridge) == (True, 1)


def test_round_in_immunity_uses_up_no_check(rocket: RocketSystem, bridge: BridgeSystem) -> None:
    """Hole 7: a put back in immunity raises the counter. Here nothing happens before the first due time (K)."""
    prepared: list[str] = []

    def script(system: MessageSystem) -> tuple[bool, int]:
        system.join("shop", "COMMIT")
        prepared.append(system.prepare("shop", "a", immunity_seconds=4))
        return is_seen(system, system.visible), system.asked(prepared[-1])

    assert script(rocket) == (False, 0)
    assert script(bridge) == (True, 1)
    shown = bridge.show(prepared[-1])
    assert shown["resolved_by"] == "check"
    born, asked = (datetime.fromisoformat(shown[name]) for name in ("born_time", "resolved_at"))
    assert asked - born >= timedelta(seconds=4)
