"""A shop in Flask that announces an order on Kafka exactly if the order is in its own database.

CHECK_SECRETS=whsec_... flask run
"""

import os
from typing import Any

from flask import Flask, request
from flask.typing import ResponseReturnValue
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from outbox import Bridge, OutboxError, Outcome
from outbox.check_handler import CheckHandler
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from outbox.wsgi import CheckApp

BRIDGE_URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:8780")
DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///orders.db")
CHECK_SECRETS = os.environ["CHECK_SECRETS"].split()  # two for a day while one takes the place of the other
GROUP = "flask-orders"
TOPIC = "orders.created"
STATUS_OF = {Outcome.NOT_APPLIED: 503, Outcome.UNKNOWN: 504, Outcome.PARTLY: 500}


class Table(DeclarativeBase):
    """Tables of the shop."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


record = TransactionRecord(make_record_table(Table.metadata))
engine = create_engine(DATABASE_URL, pool_pre_ping=True)
if engine.dialect.name == "sqlite":
    with engine.connect() as connection:  # or checks could not read while an order is being committed
        connection.execute(text("PRAGMA journal_mode=WAL"))
Table.metadata.create_all(engine)  # in production a migration: outbox.ddl
bridge = Bridge(BRIDGE_URL, GROUP, record=record)

app = Flask(__name__)
checks = CheckApp(CheckHandler(CHECK_SECRETS, record.answers(engine)))
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/outbox-checks": checks})  # type: ignore[method-assign]


@app.post("/orders")
def place_order() -> ResponseReturnValue:
    asked: dict[str, Any] = request.get_json()
    try:
        order_id, cents = str(asked["order_id"]), int(asked["cents"])
    except (KeyError, TypeError, ValueError):
        return {"detail": "an order has an order_id and cents"}, 422
    try:
        with Session(engine) as session, bridge.transaction(session) as transaction:
            session.add(Order(order_id=order_id, cents=cents))
            transaction.send(TOPIC, key=order_id, value={"order_id": order_id, "cents": cents})
    except IntegrityError:
        return {"detail": "there is an order of this id"}, 409
    return {"order_id": order_id}, 201


@app.get("/orders/<order_id>")
def read_order(order_id: str) -> ResponseReturnValue:
    with Session(engine) as session:
        order = session.scalar(select(Order).where(Order.order_id == order_id))
        return ({"order_id": order.order_id, "cents": order.cents}, 200) if order else ({}, 404)


@app.errorhandler(OutboxError)
def tell_failure(error: OutboxError) -> ResponseReturnValue:
    """503: nothing was ordered, try again. 504: perhaps it was, look first. 500: ordered, and never published."""
    return {"detail": str(error), "outcome": error.outcome}, STATUS_OF[error.outcome]
