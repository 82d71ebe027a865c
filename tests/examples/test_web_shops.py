"""FastAPI, Flask and Django: an order is in the database exactly if its message is in Kafka, whenever the shop dies."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from tests.support.bridge_process import wait_until
from tests.support.example_process import ExampleProcess, killing_after, killing_before, run
from tests.support.example_stage import ORDERS, MakeExample, Stage
from tests.support.faulty_front import Front, let_through
from tests.support.postgres import PostgresServer

PREPARE, END = "/v1/transactions", "/v1/resolutions"


@dataclass(frozen=True, slots=True)
class Shop:
    """A running shop. `kind`: the folder of its example, the name of its group too."""

    kind: str
    process: ExampleProcess
    database_url: str
    order_table: str

    def order(self, number: str) -> int | None:
        """The status of the answer; None if it died."""
        order = {"order_id": self.id_of(number), "customer": self.kind, "credits": 10, "cents": 10}
        wanted = {"fastapi-orders": ("order_id", "customer", "credits")}.get(self.kind, ("order_id", "cents"))
        try:
            body = {name: order[name] for name in wanted}
            return httpx2.post(f"{self.process.url}/orders", json=body, timeout=30).status_code
        except httpx2.TransportError:
            return None

    def id_of(self, number: str) -> str:
        return f"{self.kind}-{number}"

    def wait_answering(self) -> None:
        """Returns when it serves."""
        self.process.wait_answering("/orders/none")

    def kept(self) -> set[str]:
        """Ids of the orders in its database."""
        engine = sa.create_engine(self.database_url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return set(connection.scalars(sa.text(f"SELECT order_id FROM {self.order_table}")))

    def announced(self, stage: Stage) -> list[str]:
        """Ids of its orders on Kafka, in any order."""
        keys = {self.kind} if self.kind == "fastapi-orders" else {self.id_of(number) for number in ("1", "2", "3")}
        read = [record for key in keys for record in stage.read(ORDERS, key)]
        return sorted(json.loads(record.value or b"")["order_id"] for record in read)


MakeShop = Callable[[str], Shop]


@pytest.fixture
def make_shop(
    stage: Stage, front: Front, make_example: MakeExample, postgres: PostgresServer, tmp_path: Path
) -> MakeShop:
    """Starts the example of this name; its calls go through `front`."""

    def make(kind: str) -> Shop:
        is_fastapi = kind == "fastapi-orders"
        url = postgres.create() if is_fastapi else f"sqlite:///{tmp_path / 'orders.db'}"
        settings = {
            "BRIDGE_URL": front.url,
            "DATABASE_URL": url,
            "DATABASE_FILE": str(tmp_path / "orders.db"),
            "OWN_URL": "http://127.0.0.1:{port}",
        }
        process = make_example(kind, COMMANDS[kind], **settings)
        endpoints = () if is_fastapi else (f"{process.url}/outbox-checks",)
        secret = stage.put_group(kind, *endpoints)
        process.settings = {**settings, "CHECK_SECRETS": f"whsec_b2xkc2VjcmV0b2xkc2VjcmV0b2xkc2VjcmV0 {secret}"}
        if kind == "django-orders":
            run([str(stage.python), "manage.py", "migrate"], cwd=process.folder, settings=process.settings)
        process.start()
        shop = Shop(kind, process, url, "store_order" if kind == "django-orders" else "orders")
        shop.wait_answering()
        return shop

    return make


COMMANDS: Mapping[str, str] = {
    "fastapi-orders": "PYTHON -m uvicorn orders:app --port {port} --log-level warning",
    "flask-orders": "PYTHON -m flask --app app run --port {port}",
    "django-orders": "PYTHON manage.py runserver --noreload {port}",
}


@pytest.mark.parametrize("kind", list(COMMANDS))
def test_order_is_announced_exactly_if_it_is_kept(kind: str, stage: Stage, front: Front, make_shop: MakeShop) -> None:
    """Once without a fault, once killed before the local commit, once between it and the end; a repeat is refused."""
    shop, told = make_shop(kind), list[str]()
    if kind == "fastapi-orders":
        assert shop.order("1") == 402, "no credits yet"
        httpx2.put(f"{shop.process.url}/accounts/{kind}", params={"credits": 25}, timeout=30).raise_for_status()
    assert shop.order("1") == 201
    assert shop.order("1") == 409
    assert (shop.kept(), shop.announced(stage)) == ({shop.id_of("1")}, [shop.id_of("1")])

    front.fault = killing_after(PREPARE, shop.process.kill, told)
    assert shop.order("2") is None
    restart(shop, front)
    wait_until(lambda: stage.state_of(json.loads(told[0])["transaction_id"]) == "ROLLED_BACK", name="rolled back")

    front.fault = killing_before(END, shop.process.kill)
    assert shop.order("3") is None
    assert (shop.kept(), shop.announced(stage)) == ({shop.id_of("1"), shop.id_of("3")}, [shop.id_of("1")])
    restart(shop, front)
    wait_until(lambda: shop.id_of("3") in shop.announced(stage), name="announced")
    assert (shop.kept(), shop.announced(stage)) == (
        {shop.id_of("1"), shop.id_of("3")},
        [shop.id_of("1"), shop.id_of("3")],
    )
    if kind == "fastapi-orders":
        assert shop.order("2") == 402, "each order took its credits once"
        assert has_lease(kind, stage)
        shop.process.end()
        wait_until(lambda: not has_lease(kind, stage), 15, "left, long before its lease is over")


def restart(shop: Shop, front: Front) -> None:
    """At the same place; nothing is caught any more."""
    front.fault = let_through
    shop.process.start()
    shop.wait_answering()


def has_lease(group: str, stage: Stage) -> bool:
    """Whether an instance is registered. Endpoints that have left are listed with what became of their calls."""
    document: Any = stage.api.get(f"/v1/producer-groups/{group}").json()
    return any(endpoint["leased"] for endpoint in document["endpoints"])
