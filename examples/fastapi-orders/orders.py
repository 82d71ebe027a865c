"""Orders paid with credits: order, credits and message, all of them or none.

CHECK_SECRETS=whsec_... uvicorn orders:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AsyncBridge, OutboxError, Outcome
from outbox.asgi import CheckApp
from outbox.check_handler import AsyncCheckHandler
from outbox.tables import make_record_table
from outbox.transaction_record import AsyncTransactionRecord

BRIDGE_URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:8780")
DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql+psycopg:///orders")
OWN_URL = os.environ.get("OWN_URL", "http://127.0.0.1:8000")  # of this instance, as the bridge reaches it
CHECK_SECRETS = os.environ["CHECK_SECRETS"].split()  # two for a day while one takes the place of the other
GROUP = "fastapi-orders"
TOPIC = "orders.created"


class Table(DeclarativeBase):
    """Tables of the service."""


class Account(Table):
    """What a customer may spend."""

    __tablename__ = "accounts"
    customer: Mapped[str] = mapped_column(primary_key=True)
    credits: Mapped[int]


class Order(Table):
    """An order that was paid."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    credits: Mapped[int]


record = AsyncTransactionRecord(make_record_table(Table.metadata))
engine = create_async_engine(DATABASE_URL, pool_pre_ping=True)
open_session = async_sessionmaker(engine, expire_on_commit=False)
bridge = AsyncBridge(BRIDGE_URL, GROUP, record=record)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The bridge may ask this instance while it lives. The slash: without it Starlette would redirect."""
    async with engine.begin() as connection:  # in production a migration: outbox.ddl
        await connection.run_sync(Table.metadata.create_all)
    async with bridge, bridge.endpoint_lease(f"{OWN_URL}/outbox-checks/"):
        yield
    await engine.dispose()


app = FastAPI(title="orders", lifespan=lifespan)
app.mount("/outbox-checks", CheckApp(AsyncCheckHandler(CHECK_SECRETS, record.answers(engine))))


async def begin_session() -> AsyncIterator[AsyncSession]:
    """One session for a request."""
    async with open_session() as session:
        yield session


Session = Annotated[AsyncSession, Depends(begin_session)]


class NewOrder(BaseModel):
    """What a client asks for. It chooses the id, so that it can ask again without ordering twice."""

    order_id: Annotated[str, Field(pattern=r"^[\w-]{1,40}$")]
    customer: Annotated[str, Field(pattern=r"^[\w-]{1,40}$")]
    credits: Annotated[int, Field(ge=1, le=1_000_000)]


class PlacedOrder(BaseModel):
    """`is_published`: false if that will only be seen to by the back-check."""

    order_id: str
    is_published: bool


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: Session) -> PlacedOrder:
    try:
        async with bridge.transaction(session) as transaction:
            await pay(session, new)
            session.add(Order(**new.model_dump()))
            transaction.send(TOPIC, key=new.customer, value=new.model_dump())
    except IntegrityError as error:
        raise HTTPException(409, "there is an order of this id") from error
    return PlacedOrder(order_id=new.order_id, is_published=bool(transaction.result and transaction.result.is_settled))


async def pay(session: AsyncSession, new: NewOrder) -> None:
    """Whatever is raised inside the block rolls everything back, and nothing is sent."""
    account = await session.get(Account, new.customer, with_for_update=True)
    if account is None or account.credits < new.credits:
        raise HTTPException(402, "not enough credits")
    account.credits -= new.credits


@app.get("/orders/{order_id}")
async def read_order(order_id: str, session: Session) -> NewOrder:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return NewOrder.model_validate(order, from_attributes=True)


@app.put("/accounts/{customer}", status_code=204)
async def fill_account(customer: str, credits: int, session: Session) -> None:  # noqa: A002 - its name in the URL
    await session.merge(Account(customer=customer, credits=credits))
    await session.commit()


@app.exception_handler(OutboxError)
async def tell_failure(_: Request, error: Exception) -> JSONResponse:
    """503: nothing was ordered, try again. 504: perhaps it was, look first. 500: ordered, and never published."""
    outcome = error.outcome if isinstance(error, OutboxError) else Outcome.UNKNOWN
    status = {Outcome.NOT_APPLIED: 503, Outcome.UNKNOWN: 504, Outcome.PARTLY: 500}[outcome]
    return JSONResponse({"detail": str(error), "outcome": outcome}, status)
