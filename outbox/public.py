"""What `import outbox` offers; the package loads it at the first use of one of these names."""

from outbox.async_bridge import AsyncBridge, AsyncTransaction
from outbox.async_producer import AsyncTransactionProducer
from outbox.calls import PrepareOptions
from outbox.config import BridgeConfig, HttpConfig
from outbox.endpoint_lease import AsyncEndpointLease, EndpointLease
from outbox.errors import (
    AlreadyEnded,
    AlreadyResolved,
    CheckEndpointRefused,
    Closed,
    Conflict,
    Contradicted,
    InvalidMessage,
    KeyReused,
    LocalCommitUnknown,
    LocalTransactionBarred,
    Misuse,
    NotFound,
    NotPermitted,
    NotPrepared,
    NotPullMode,
    OutboxConfigError,
    OutboxError,
    Outcome,
    OutcomeUnknown,
    Problem,
    Refused,
    RequestRefused,
    Unavailable,
)
from outbox.listener import (
    AsyncTransactionListener,
    Check,
    CheckAnswer,
    HalfMessage,
    LocalTransactionState,
    Receipt,
    Resolution,
    TransactionListener,
    TransactionSendResult,
    TransactionState,
)
from outbox.local_work import RecordWriter
from outbox.message import Message
from outbox.producer import TransactionProducer
from outbox.pull_worker import AsyncPullWorker, PullConfig, PullWorker
from outbox.replies import Prepared, TransactionView
from outbox.sync_bridge import Bridge, Transaction

__all__ = [
    "AlreadyEnded",
    "AlreadyResolved",
    "AsyncBridge",
    "AsyncEndpointLease",
    "AsyncPullWorker",
    "AsyncTransaction",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "Bridge",
    "BridgeConfig",
    "Check",
    "CheckAnswer",
    "CheckEndpointRefused",
    "Closed",
    "Conflict",
    "Contradicted",
    "EndpointLease",
    "HalfMessage",
    "HttpConfig",
    "InvalidMessage",
    "KeyReused",
    "LocalCommitUnknown",
    "LocalTransactionBarred",
    "LocalTransactionState",
    "Message",
    "Misuse",
    "NotFound",
    "NotPermitted",
    "NotPrepared",
    "NotPullMode",
    "OutboxConfigError",
    "OutboxError",
    "Outcome",
    "OutcomeUnknown",
    "PrepareOptions",
    "Prepared",
    "Problem",
    "PullConfig",
    "PullWorker",
    "Receipt",
    "RecordWriter",
    "Refused",
    "RequestRefused",
    "Resolution",
    "Transaction",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionState",
    "TransactionView",
    "Unavailable",
]
