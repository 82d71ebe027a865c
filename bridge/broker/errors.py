"""The errors of the development broker; each says what to do.

BrokerError
+-- JavaMissing          no Java 17 or newer; retrying does not help
+-- JarsUnavailable      the network or the server did not answer; retrying helps
+-- JarCorrupt           a file differs from its pinned SHA-256; retrying may help
+-- CacheUnusable        the cache folder cannot be written; retrying does not help
+-- DataFolderInUse      another process runs a broker on this folder
+-- DataFolderUnusable   the data folder cannot be written, or another Kafka made it
+-- PortTaken            somebody else listens on the port
+-- BrokerFailed         Kafka ended or did not start in time; its log says why
"""


class BrokerError(Exception):
    """Root of the errors of this package; `remedy` is one sentence for the user."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class JavaMissing(BrokerError):
    """There is no Java that can run Kafka."""


class JarsUnavailable(BrokerError):
    """Kafka's jars could not be downloaded."""


class JarCorrupt(BrokerError):
    """A jar is not the file that was pinned."""


class CacheUnusable(BrokerError):
    """The jars cannot be stored."""


class DataFolderInUse(BrokerError):
    """A living process holds the data folder."""


class DataFolderUnusable(BrokerError):
    """The data folder cannot hold a broker's data."""


class PortTaken(BrokerError):
    """A port the broker needs is in use."""


class BrokerFailed(BrokerError):
    """The broker's process did not do what it should."""
