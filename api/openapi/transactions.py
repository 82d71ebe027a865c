"""Descriptions of the routes of transactions, messages and resolutions."""

from api.openapi.operation import (
    END_PROBLEMS,
    IDEMPOTENCY_KEY,
    MESSAGE_PROBLEMS,
    PREFER,
    TRANSACTION_ID,
    WAIT,
    Body,
    Operation,
    query_parameter,
)
from api.schemas.answers import (
    AcceptedAnswer,
    AskedAnswer,
    BatchAnswer,
    PreparedAnswer,
    TimelineAnswer,
    TransactionAnswer,
)
from api.schemas.requests import (
    AbandonTransaction,
    EndTransaction,
    ForceTransaction,
    Nothing,
    Prepare,
    PrepareBatch,
    ResolutionItem,
    Resolutions,
    ResumeTransaction,
)

_TAG = "transactions"
_OPERATORS = "operators"

_ORDER = {
    "producer_group": "orders",
    "messages": [
        {
            "topic": "orders.created",
            "key": "42",
            "value": {"order": 42, "amount": 19.9},
            "headers": [["source", "shop"]],
        }
    ],
}
_KEYED = {**_ORDER, "idempotency_key": "order-42", "ordering_key": "customer-7", "check_immunity_seconds": 60}
_BINARY = {
    "producer_group": "orders",
    "messages": [
        {"topic": "orders.created", "key_base64": "AAE=", "value_base64": "/w==", "headers_base64": [["h", "AA=="]]},
        {"topic": "orders.deleted", "key": "42", "value": None},
    ],
}
_PREPARE_EXAMPLES = {"one message": _ORDER, "with keys": _KEYED, "bytes and a tombstone": _BINARY}
_ID = TRANSACTION_ID["example"]
_BLOCKED = "Decided and recorded; its publication is being retried (`blocked`). Or, with `Prefer`, not waited for."

PREPARE = Operation(
    _TAG,
    {201: (PreparedAnswer, "Stored."), 200: (TransactionAnswer, "A repeat whose transaction has ended.")},
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=_PREPARE_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY),
    headers={201: {"Location": "Path of the transaction."}, 200: {"Location": "Path of the transaction."}},
).arguments() | {"status_code": 201}

PUBLISH = Operation(
    "messages",
    {
        200: (TransactionAnswer, "Published."),
        201: (PreparedAnswer, "A repeat of what is still being decided."),
        202: (TransactionAnswer, _BLOCKED),
    },
    MESSAGE_PROBLEMS,
    Body(Prepare, examples=_PREPARE_EXAMPLES),
    (WAIT, IDEMPOTENCY_KEY),
    headers={status: {"Location": "Path of the transaction."} for status in (200, 201, 202)},
).arguments()

_BATCH = Body(PrepareBatch, examples={"two": {"transactions": [_ORDER, _KEYED]}}, lines=Prepare)
_EACH = (
    "A result for each, in the order of the request; as NDJSON, line by line. A stream of NDJSON that ends early has a "
    "last line with the problem: what was answered before stays, of the rest nothing was applied."
)

PREPARE_BATCH = Operation(_TAG, {200: (BatchAnswer, _EACH)}, (), _BATCH, (WAIT,)).arguments()
PUBLISH_BATCH = Operation("messages", {200: (BatchAnswer, _EACH)}, (), _BATCH, (WAIT,)).arguments()

RESOLVE = Operation(
    _TAG,
    {200: (BatchAnswer, _EACH)},
    (),
    Body(
        Resolutions,
        examples={
            "commit": {"resolutions": [{"transaction_id": _ID, "resolution": "COMMIT"}]},
            "answer to a check": {
                "resolutions": [{"transaction_id": _ID, "resolution": 12, "nonce": "1-p7Yw0b2cQm3dEf4g"}]
            },
        },
        lines=ResolutionItem,
    ),
    (WAIT, PREFER),
).arguments()


def _end(meaning: str) -> Operation:
    return Operation(
        _TAG,
        {200: (TransactionAnswer, meaning), 202: ((TransactionAnswer, AcceptedAnswer), _BLOCKED)},
        END_PROBLEMS,
        Body(EndTransaction, is_required=False, examples={"compared": {"producer_group": "orders"}}),
        (TRANSACTION_ID, WAIT, PREFER),
    )


COMMIT = _end("Published: consumers can read it. A repeat gets the same answer.").arguments()
ROLLBACK = _end("Rolled back: it will never be visible. A repeat gets the same answer.").arguments()

GET = Operation(
    _TAG,
    {200: (TransactionAnswer, "The transaction.")},
    ("unknown-transaction", "given-up", "projection-behind"),
    parameters=(
        TRANSACTION_ID,
        query_parameter("include", "`messages`: whole messages.", {"type": "string", "enum": ["messages"]}),
    ),
).arguments()

TIMELINE = Operation(
    _OPERATORS,
    {200: (TimelineAnswer, "Oldest first.")},
    ("unknown-transaction", "given-up", "projection-behind"),
    parameters=(TRANSACTION_ID,),
).arguments()

ASK = Operation(
    _OPERATORS,
    {202: (AskedAnswer, "The group will be asked.")},
    ("unknown-transaction", "already-resolved", "given-up", "too-early", "projection-behind", "outcome-unknown"),
    Body(Nothing, is_required=False),
    (TRANSACTION_ID, WAIT),
).arguments()

FORCE = Operation(
    _OPERATORS,
    {200: (TransactionAnswer, "Settled."), 202: (TransactionAnswer, _BLOCKED)},
    (*END_PROBLEMS, "projection-behind"),
    Body(
        ForceTransaction, examples={"roll back": {"resolution": "ROLLBACK", "reason": "order was cancelled by phone"}}
    ),
    (TRANSACTION_ID, WAIT),
).arguments()

ABANDON = Operation(
    _OPERATORS,
    {200: (TransactionAnswer, "COMMITTED and `abandoned`: nothing of it is published, now or later.")},
    ("unknown-transaction", "not-blocked", "projection-behind", "outcome-unknown"),
    Body(AbandonTransaction, examples={"gone": {"reason": "its topic was deleted for good, see ticket 7"}}),
    (TRANSACTION_ID, WAIT),
).arguments()

RESUME = Operation(
    _OPERATORS,
    {200: (TransactionAnswer, "PREPARED again.")},
    ("unknown-transaction", "not-parked", "already-resolved", "given-up", "projection-behind", "outcome-unknown"),
    Body(ResumeTransaction, examples={"deployed": {"reason": "the shop answers again"}}),
    (TRANSACTION_ID, WAIT),
).arguments()
