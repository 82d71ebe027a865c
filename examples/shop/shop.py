"""A shop that announces an order on Kafka exactly if the order is in its own database.

    SHOP_DATABASE=shop.db SHOP_BRIDGE=http://127.0.0.1:8780 SHOP_SECRET_FILE=secret uvicorn shop:app

An order is prepared at the bridge, written by the local transaction, and committed at the bridge. Should this
process die in between, the bridge asks `/check`, which looks into the database.
"""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

GROUP = "shop"
TOPIC = os.environ.get("SHOP_TOPIC", "orders.created")

app = FastAPI(title="shop")
engine = create_engine(f"sqlite:///{os.environ['SHOP_DATABASE']}", connect_args={"timeout": 10})
bridge = httpx2.Client(base_url=os.environ["SHOP_BRIDGE"], timeout=15, trust_env=False)  # by no proxy
secret_file = Path(os.environ["SHOP_SECRET_FILE"])
being_placed: set[str] = set()
placing = threading.Lock()


class Table(DeclarativeBase):
    """Tables of the shop."""


class Order(Table):
    """A fact of the shop, written by its local transaction."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    transaction_id: Mapped[str] = mapped_column(unique=True)


class Bar(Table):
    """A check was answered ROLLBACK: no order of this transaction may be written any more."""

    __tablename__ = "bars"
    transaction_id: Mapped[str] = mapped_column(primary_key=True)


class Credit(Table):
    """A fact of the loyalty programme, written by `consumer.py` for each message that it reads."""

    __tablename__ = "credits"
    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    cents: Mapped[int]


BAR = text("INSERT OR IGNORE INTO bars SELECT :id WHERE NOT EXISTS (SELECT 1 FROM orders WHERE transaction_id = :id)")

with engine.begin() as setup:
    setup.execute(text("PRAGMA journal_mode=WAL"))
Table.metadata.create_all(engine)


class NewOrder(BaseModel):
    """`die`: the whole process is killed at this point, to see what becomes of the order."""

    order_id: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[\w-]+$")]
    cents: Annotated[int, Field(ge=1)]
    card: Literal["good", "declined"] = "good"
    die: Literal["after-local-commit"] | None = None


class CardDeclined(Exception):
    """The bank said no."""


class Barred(Exception):
    """The bridge asked before the order was written."""


@app.get("/health")
def health() -> dict[str, bool]:
    return {"alive": True}


@app.post("/orders", status_code=201)
def place_order(order: NewOrder) -> dict[str, Any]:
    with placing:  # two calls would have one transaction, and the failure of one would end that of the other
        if order.order_id in being_placed:
            raise HTTPException(409, "it is being placed")
        being_placed.add(order.order_id)
    try:
        transaction_id = prepare(order)
        try:
            write_order(order, transaction_id)
        except IntegrityError as error:
            if not is_written(transaction_id):  # else it was, by a process that died before it could say so
                end(transaction_id, "rollback")
                raise HTTPException(409, "there is an order of this id") from error
        except (CardDeclined, Barred) as error:
            end(transaction_id, "rollback")
            raise HTTPException(402 if isinstance(error, CardDeclined) else 409, type(error).__name__) from error
    finally:
        being_placed.discard(order.order_id)
    if order.die == "after-local-commit":
        os.kill(os.getpid(), signal.SIGKILL)
    return end(transaction_id, "commit")


def prepare(order: NewOrder) -> str:
    """A half message: stored by the bridge, seen by nobody. The key makes a repeat harmless."""
    message = {"topic": TOPIC, "key": order.order_id, "value": {"order_id": order.order_id, "cents": order.cents}}
    body = {"producer_group": GROUP, "messages": [message], "idempotency_key": order.order_id}
    answer = bridge.post("/v1/transactions", json=body)
    answer.raise_for_status()
    prepared = answer.json()
    if prepared["state"] != "PREPARED":
        raise HTTPException(409, f"order {order.order_id} was {prepared['state']} before")
    return str(prepared["transaction_id"])


def write_order(order: NewOrder, transaction_id: str) -> None:
    """The local transaction."""
    with Session(engine) as session, session.begin():
        session.add(Order(order_id=order.order_id, cents=order.cents, transaction_id=transaction_id))
        session.flush()  # from here on nobody else writes, so no bar can come
        if session.get(Bar, transaction_id) is not None:
            raise Barred
        if order.card == "declined":
            raise CardDeclined


def is_written(transaction_id: str) -> bool:
    """Whether the local transaction has committed."""
    with Session(engine) as session:
        return session.scalar(select(Order).where(Order.transaction_id == transaction_id)) is not None


def end(transaction_id: str, resolution: str) -> dict[str, Any]:
    """Whatever becomes of this call, the order stands as it is in the database: the bridge would ask."""
    answer = bridge.post(f"/v1/transactions/{transaction_id}/{resolution}", json={})
    return {"transaction_id": transaction_id, **(answer.json() if answer.is_success else {"state": "to be asked"})}


@app.post("/check")
async def check(request: Request) -> dict[str, Any]:
    """The bridge asks what became of transactions whose end it never heard."""
    body = await request.body()
    try:
        verify(body, dict(request.headers))
    except WebhookVerificationError as error:
        raise HTTPException(401, "not signed by the bridge") from error
    return {"resolutions": [answer_check(asked) for asked in json.loads(body)["checks"]]}


def verify(body: bytes, headers: dict[str, str]) -> None:
    """The secret may be rotated while this runs, so it is read each time."""
    Webhook(secret_file.read_text().strip()).verify(body, headers)


def answer_check(asked: dict[str, Any]) -> dict[str, str]:
    """In the database: COMMIT. Not there, and nobody at work on it: ROLLBACK, and never will it be there."""
    transaction_id = asked["transaction_id"]
    is_at_work = asked["idempotency_key"] in being_placed  # looked at before the database is
    if not is_at_work:
        with engine.begin() as connection:
            connection.execute(BAR, {"id": transaction_id})
    resolution = "COMMIT" if is_written(transaction_id) else "UNKNOWN" if is_at_work else "ROLLBACK"
    return {"transaction_id": transaction_id, "nonce": asked["nonce"], "resolution": resolution}
