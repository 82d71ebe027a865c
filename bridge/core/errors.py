"""The error tree of the bridge.

BridgeError
+-- ConfigError                a setting is wrong; retrying does not help
+-- MalformedRecord            a record cannot be parsed; it is quarantined
+-- UnknownRecordVersion       our prefix, but a newer version or kind; its queue halts
+-- QueueHalted                a queue cannot be decided safely; an operator is needed
+-- StoreError
    +-- StoreUnavailable       nothing was applied; retrying helps
    +-- StoreTimeout           no answer in time to a read; retrying helps
    +-- BatchAborted           a Kafka transaction was aborted cleanly; its writer goes on
    +-- BatchOutcomeUnknown    it may or may not be committed; take the queue over anew
        +-- StoreFenced        another owner has the queue's transactional ids
"""


class BridgeError(Exception):
    """Root of every error the bridge raises."""


class ConfigError(BridgeError):
    """A setting has a value that cannot be used."""


class MalformedRecord(BridgeError):
    """A record of an internal topic that cannot be parsed."""


class UnknownRecordVersion(BridgeError):
    """A record with our prefix whose version or kind this release does not know."""


class QueueHalted(BridgeError):
    """A queue whose log does not hold what is needed to decide it."""


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
    """Another owner has taken the queue's transactional ids."""
