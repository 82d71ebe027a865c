"""`python -m benchmarks.peers.plain_api serve ...`: an api process whose calls are plain FastAPI routes with pydantic.

Behind them is the bridge's own service, so that the difference is the way from HTTP to it alone.
"""

import sys
from typing import Annotated

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

import api.wiring
from api.cli.main import run
from api.web.app import create_app
from api.web.request import Services
from bridge.core.message import Message as StoreMessage
from bridge.core.record import Resolution
from bridge.service.contract import Accepted, EndCall, PrepareCall, Prepared, Refused


class Message(BaseModel):
    """A message of a prepare."""

    topic: Annotated[str, Field(min_length=1, max_length=249)]
    key: str | None = None
    value: str | None = None


class Prepare(BaseModel):
    """A half message."""

    producer_group: Annotated[str, Field(min_length=1, max_length=120)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=100)]


class PreparedAnswer(BaseModel):
    """Where it is stored."""

    transaction_id: str
    state: str
    queue_id: int
    queue_offset: int


class Receipt(BaseModel):
    """Where a message was published."""

    topic: str
    partition: int
    offset: int | None


class Committed(BaseModel):
    """What became of it."""

    transaction_id: str
    state: str
    receipts: list[Receipt]


def create_plain_app(services: Services, *, is_api: bool = True) -> FastAPI:
    """The bridge's health routes, and plain ones for the calls that are measured."""
    bridge = create_app(services, is_api=False)
    app = FastAPI(openapi_url=None)
    app.state = bridge.state  # where the server looks for its bounds

    @app.post("/v1/transactions", status_code=201)
    async def prepare(body: Prepare) -> PreparedAnswer:
        messages = [StoreMessage(m.topic, _encode(m.key), _encode(m.value)) for m in body.messages]
        (answer,) = await services.transactions.prepare([PrepareCall(body.producer_group, messages)], 10_000)
        if not isinstance(answer, Prepared):
            raise HTTPException(503, "not prepared")
        return PreparedAnswer(
            transaction_id=answer.transaction_id,
            state=answer.state.value,
            queue_id=answer.queue_id,
            queue_offset=answer.queue_offset,
        )

    @app.post("/v1/transactions/{transaction_id}/commit")
    async def commit(transaction_id: str) -> Committed:
        (answer,) = await services.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
        if isinstance(answer, Refused | Accepted):
            raise HTTPException(503, "not committed")
        receipts = [Receipt(topic=r.topic, partition=r.queue_id, offset=r.queue_offset) for r in answer.receipts]
        return Committed(transaction_id=answer.transaction_id, state=answer.state.value, receipts=receipts)

    app.mount("/", bridge)
    return app


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


if __name__ == "__main__":
    api.wiring.create_app = create_plain_app  # type: ignore[assignment, attr-defined]
    sys.exit(run())
