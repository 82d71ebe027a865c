"""The error tree of the bridge.

BridgeError
+-- ConfigError                a setting is wrong; retrying does not help
+-- MalformedRecord            a record cannot be parsed; it is quarantined
+-- UnknownRecordVersion       our prefix, but a newer version or kind; its queue halts
+-- QueueHalted                a queue cannot be decided safely; an operator is needed
+-- SqlUnavailable             the database cannot do it now
|   +-- SecretUnreadable       a secret in it cannot be decrypted with the keys of the settings
|       +-- SecretDamaged      though there is a key of that name
+-- StoreError
    +-- StoreUnavailable       nothing was applied; retrying helps
    +-- StoreTimeout           no answer in time to a read; retrying helps
    +-- BatchAborted           a Kafka transaction was aborted cleanly; its writer goes on
    +-- BatchOutcomeUnknown    it may or may not be committed; take the queue over anew
        +-- StoreFenced        another owner has, or nobody has any more, the queue's transactional ids
"""

from enum import StrEnum

_NEWER_REMEDY = "start processes of the one that wrote it; if none of yours did, see 'A queue halts' in docs/stuck.md"


class HaltKind(StrEnum):
    """Why a queue's log is not what was left. Each stays until an operator says what is given up."""

    NO_POSITION = "no-position"  # the op topic does not say up to where the queue was decided
    OTHER_OP = "other-op"  # the op topic is another one
    OP_LOST = "op-lost"  # what the op topic held is gone: it ends, or its last position is, before what was seen
    OTHER_JOURNAL = "other-journal"
    JOURNAL_LOST = "journal-lost"  # records that were decided are gone, or others are in their place
    JOURNAL_GAP = "journal-gap"  # retention has removed what is still needed
    OTHER_PARKED = "other-parked"
    OLDER_DATABASE = "older-database"  # the log is whole; the database is of before an act that gave up its past


class BridgeError(Exception):
    """Root of every error the bridge raises."""


class ConfigError(BridgeError):
    """A setting has a value that cannot be used."""


class MalformedRecord(BridgeError):
    """A record of an internal topic that cannot be parsed."""


class UnknownRecordVersion(BridgeError):
    """A record with our prefix whose version or kind this release does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not of this release: {_NEWER_REMEDY}")
        self.what = what


class QueueHalted(BridgeError):
    """A queue whose log does not hold what is needed to decide it.

    `kind`: what of the log is not what was left; such a halt is stored. None: it may end by itself.
    """

    def __init__(self, detail: str, kind: HaltKind | None = None) -> None:
        super().__init__(detail)
        self.kind = kind


class StoreError(BridgeError):
    """The log could not do what was asked."""


class StoreUnavailable(StoreError):
    """The log cannot be reached, or refuses; nothing was applied."""


class StoreTimeout(StoreError):
    """The log gave no answer to a read in time."""


class BatchAborted(StoreError):
    """An atomic batch was aborted and is not visible; the writer can be used again.

    `topic` names the destination that caused it where the log said so.
    """

    def __init__(self, reason: str, topic: str | None = None) -> None:
        super().__init__(reason if topic is None else f"{topic}: {reason}")
        self.reason = reason
        self.topic = topic


class BatchOutcomeUnknown(StoreError):
    """An atomic batch may or may not be committed; the writer must not be used again."""


class StoreFenced(BatchOutcomeUnknown):
    """Another owner has taken the queue's transactional ids, or the log has forgotten them."""


class SqlUnavailable(BridgeError):
    """The database is not reachable, overloaded, read-only, or not migrated.

    `retry_helps`: False where an operator is needed first. `is_outcome_unknown`: the connection broke
    in COMMIT, so the work may have been applied; in every other case nothing was.
    """

    def __init__(self, reason: str, *, retry_helps: bool = True, is_outcome_unknown: bool = False) -> None:
        super().__init__(reason)
        self.retry_helps = retry_helps
        self.is_outcome_unknown = is_outcome_unknown


class SecretUnreadable(SqlUnavailable):
    """A secret in the database cannot be decrypted with the keys of the settings."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, retry_helps=False)
        self.remedy = remedy


class SecretDamaged(SecretUnreadable):
    """It was changed in the database, or encrypted with another key of that name. Others may well be sound."""
