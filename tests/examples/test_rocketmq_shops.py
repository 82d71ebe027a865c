"""RocketMQ's client and its Spring Boot starter, unmodified: an order is announced in Kafka exactly if it is paid."""

import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx2
import pytest

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import create_topics, read_committed, wait_until
from tests.support.example_process import ExampleProcess, run
from tests.support.example_stage import MakeExample, Stage

PAID = "orders-paid"
COMMANDS = {
    "rocketmq-java": "java -cp lib/* Shop.java {port}",
    "rocketmq-spring": "java -jar target/rocketmq-spring-1.jar --server.port={port}",
}
BUILDS = {"rocketmq-java": "dependency:copy-dependencies -DoutputDirectory=lib", "rocketmq-spring": "package"}


@dataclass(slots=True)
class FrontDoor:
    """What the door advertises: passes frames on, until `fault` is set; then the next end of a transaction calls it
    and is lost, with its connection."""

    door: int
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    fault: Callable[[], None] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        """Until the listener is closed."""
        with suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                door = socket.create_connection(("127.0.0.1", self.door))
                for take, give in ((client, door), (door, client)):
                    threading.Thread(target=self._pass_on, args=(take, give), daemon=True).start()

    def _pass_on(self, take: socket.socket, give: socket.socket) -> None:
        with suppress(OSError, struct.error), take, give, take.makefile("rb") as frames:
            while True:
                head = frames.read(4)
                frame = frames.read(*struct.unpack(">i", head))
                if b'"code":37,' in frame[:2_000] and self.fault is not None:
                    fault, self.fault = self.fault, None
                    fault()
                    return
                give.sendall(head + frame)


@contextmanager
def front_door(door: int) -> Iterator[FrontDoor]:
    """In a thread of its own."""
    opened = FrontDoor(door)
    thread = threading.Thread(target=opened.serve, daemon=True)
    thread.start()
    try:
        yield opened
    finally:
        opened.listener.shutdown(socket.SHUT_RDWR)
        opened.listener.close()
        thread.join(10)


@pytest.fixture(scope="module")
def front(stage: Stage) -> Iterator[FrontDoor]:
    """A door of its own process beside the bridge."""
    create_topics(stage.bridge.kafka, {PAID: 1})
    port = choose_free_port()
    with front_door(port) as opened:
        settings = {"OUTBOX_BRIDGE_REMOTING__PORT": str(port), "OUTBOX_BRIDGE_REMOTING__ADVERTISE": opened.address}
        with stage.bridge.serve("remoting", **settings):
            yield opened


@pytest.fixture(params=sorted(COMMANDS))
def shop(request: pytest.FixtureRequest, stage: Stage, front: FrontDoor, make_example: MakeExample) -> ExampleProcess:
    """Built as its page says, and running."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    kind = request.param
    stage.put_group(kind, mode="pull")
    process = make_example(kind, COMMANDS[kind], NAME_SERVER=front.address)
    run(["mvn", "-q", "-B", *BUILDS[kind].split()], cwd=process.folder)
    return process.start().wait_answering("/nothing")


def pay(shop: ExampleProcess, order: str) -> int | None:
    """The status of the answer; None if it died."""
    try:
        return httpx2.post(f"{shop.url}/orders/{order}/pay", timeout=30).status_code
    except httpx2.TransportError:
        return None


def test_order_is_announced_exactly_if_it_is_paid(shop: ExampleProcess, stage: Stage, front: FrontDoor) -> None:
    """Paid; paid again, which is none; and paid by a shop that died before the door heard of it."""
    kind = shop.folder.name

    def states() -> list[str]:
        listed = stage.api.get(f"/v1/transactions?producer_group={kind}").json()["transactions"]
        return sorted(one["state"] for one in listed)

    def announced(number: str) -> int:
        said = f'"{kind}-{number}"'.encode()
        return sum(said in (record.value or b"") for record in read_committed(stage.bridge.kafka, [PAID]))

    for number in "12":
        body = {"customer": "ada", "cents": 1990}
        assert httpx2.put(f"{shop.url}/orders/{kind}-{number}", json=body, timeout=30).status_code == 200
    assert pay(shop, f"{kind}-1") == 200
    assert pay(shop, f"{kind}-1") == 409
    wait_until(lambda: states() == ["COMMITTED", "ROLLED_BACK"], name="both ends have come")
    front.fault = shop.kill
    assert pay(shop, f"{kind}-2") in {200, None}  # ends are one-way: the answer may be quicker
    shop.wait_ended()
    shop.start().wait_answering("/nothing")

    wait_until(lambda: announced("2") > 0, 60, "the check has found the paid order")
    wait_until(lambda: states() == ["COMMITTED", "COMMITTED", "ROLLED_BACK"], name="the projection says so")
    assert (announced("1"), announced("2")) == (1, 1)
