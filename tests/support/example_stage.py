"""What all examples run beside: one bridge, one Kafka, one environment with the built wheel."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.bridge_process import Bridge, BridgeProcess, Record, read_committed
from tests.support.example_process import ExampleProcess

ORDERS, EVENTS = "orders.created", "outbox.event.order"


@dataclass(frozen=True, slots=True)
class Stage:
    """A running bridge, and the Python that the examples run with."""

    bridge: Bridge
    api: BridgeProcess
    python: Path

    @property
    def wheel(self) -> Path:
        """The built one."""
        (wheel,) = (self.python.parents[2] / "dist").glob("*.whl")
        return wheel

    def put_group(self, name: str, *urls: str, **check: object) -> str:
        """Makes a group that is asked soon; its secret."""
        body = {
            "endpoints": [{"url": url} for url in urls],
            "check": {"transaction_timeout_seconds": 1, "interval_seconds": 1, **check},
        }
        answer = self.api.http.put(f"/v1/producer-groups/{name}", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["secret"])

    def state_of(self, transaction_id: str) -> str:
        """As it is recorded."""
        return str(self.api.get(f"/v1/transactions/{transaction_id}").json()["state"])

    def read(self, topic: str, key: str) -> list[Record]:
        """What a consumer sees under this key."""
        return [record for record in read_committed(self.bridge.kafka, [topic]) if record.key == key.encode()]


MakeExample = Callable[..., ExampleProcess]
