"""What this package raises. One root; each leaf says whether a retry helps."""

from typing import ClassVar


class OutboxError(Exception):
    """The root. `retry_helps`: whether the same call may succeed later, as it is."""

    retry_helps: ClassVar[bool] = False


class OutboxConfigError(OutboxError):
    """A setting that cannot work; nothing has been started."""


class LocalTransactionBarred(OutboxError):
    """The id already has a transaction record: this local transaction must not commit, and has not.

    Either a back-check came first and was answered ROLLBACK, or an earlier try under the same idempotency key
    has committed. Roll the local transaction back and end nothing: the record that is there will answer.
    """


class SignatureRefused(OutboxError):
    """A call that no known secret has signed just now. The message names no secret and no signature."""


class CallRefused(OutboxError):
    """A check call that has not the agreed shape."""


class HandOverUnavailable(OutboxError):
    """The bridge could not be asked, or said nothing of any row: hand all of them over again later."""

    retry_helps = True

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
