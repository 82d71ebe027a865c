"""The check callback: what the bridge sends to a producer group, and what counts as an answer."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from api.schemas.answers import MessageAnswer, Time
from api.schemas.requests import GroupName, TransactionId

Nonce = Annotated[str, Meta(description="Goes back with the answer.", examples=["1-p7Yw0b2cQm3dEf4g"])]


class CheckItem(Struct):
    """A transaction whose end is missing. `check_number` counts answered checks, from 1."""

    transaction_id: TransactionId
    check_number: int
    nonce: Nonce
    born_time: Time
    idempotency_key: str | None
    messages: list[MessageAnswer]


class CheckCall(Struct):
    """One call about many transactions of one group."""

    type: Literal["transaction.check"]
    producer_group: GroupName
    checks: list[CheckItem]


class CheckResolution(Struct):
    """What became of one transaction."""

    transaction_id: TransactionId
    nonce: Nonce
    resolution: Literal["COMMIT", "ROLLBACK", "UNKNOWN"]


class CheckAnswer(Struct):
    """The answer to a call."""

    resolutions: list[CheckResolution]
