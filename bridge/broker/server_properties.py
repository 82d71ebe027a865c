"""PURE. How a single-node KRaft broker on loopback is configured; written down once, tried on Kafka 4.3.1."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

HOST = "127.0.0.1"
STARTED_LINE = "Kafka Server started"
FENCED_LINE = "Fencing broker 1"

_FIXED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "C",
    "listener.security.protocol.map": "P:PLAINTEXT,C:PLAINTEXT",
    "inter.broker.listener.name": "P",
    "auto.create.topics.enable": "false",
    # one node cannot keep replicas
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # small
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "1",
    # the default of 128 MiB does not fit the heap
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.io.buffer.size": "131072",
    "log.cleaner.backoff.ms": "200",
    # the default of 30 s: no cleaning before
    "log.initial.task.delay.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # groups of the newer protocol: the broker decides, 45 s by default
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
    # one that stands still for a while, as on a busy machine, must not be taken for dead by its own controller: its
    # partitions would have no leader for a moment, and no other could take them over anyway
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True)
class BrokerLayout:
    """Where a broker keeps its things and listens; `settings` overrule the fixed ones."""

    folder: Path
    port: int
    controller_port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_folder(self) -> Path:
        """Kafka's own data; there once it has been formatted."""
        return self.folder / "log"

    @property
    def is_unclean(self) -> bool:
        """Whether the last run on these data did not end in peace."""
        return not (self.log_folder / ".kafka_cleanshutdown").exists()

    def count_metadata_bytes(self) -> int:
        """How large the controller's log is."""
        return sum(file.stat().st_size for file in (self.log_folder / "__cluster_metadata-0").glob("*.log"))

    @property
    def properties_file(self) -> Path:
        """The configuration; its path in a command line shows whose broker that is."""
        return self.folder / "server.properties"

    @property
    def output_file(self) -> Path:
        """What Kafka prints."""
        return self.folder / "broker.log"


def make_properties(layout: BrokerLayout, log_folder: Path) -> str:
    """The text of `server.properties`, for a process that works in the layout's folder.

    Kafka reads the file as ISO 8859-1, and its folders as a list between commas: a path may be neither.
    """
    placed = {
        "listeners": f"P://{HOST}:{layout.port},C://{HOST}:{layout.controller_port}",
        # static voters: a formatted folder can be moved and used on any port
        "controller.quorum.voters": f"1@{HOST}:{layout.controller_port}",
        "log.dirs": log_folder.name,
    }
    settings = {**_FIXED, **placed, **layout.settings}
    return "".join(f"{name}={_escape(value)}\n" for name, value in settings.items())


def make_controller_properties(layout: BrokerLayout) -> str:
    """The same node as a controller without its broker, on the same data; it soon ends the broker's old session."""
    listener = f"C://{HOST}:{layout.controller_port}"
    alone = {
        "process.roles": "controller",
        "listeners": listener,
        "advertised.listeners": listener,
        "broker.session.timeout.ms": "1000",
        "metadata.max.idle.interval.ms": "100",
    }
    lines = make_properties(replace(layout, settings={**layout.settings, **alone}), layout.log_folder).splitlines()
    return "".join(f"{line}\n" for line in lines if not line.startswith("inter.broker.listener.name="))


def make_java_options(heap_mb: int, *, is_long_lived: bool = False) -> tuple[str, ...]:
    """For a short start and a small memory; or `is_long_lived`, with the full compiler, which takes a third of a core
    for minutes before it is worth it."""
    return (
        f"-Xms{min(64, heap_mb)}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-Duser.language=en",  # in Turkish, Kafka 4.3.1 does not find its own names: a capital i has a dot there
        *(() if is_long_lived else ("-XX:TieredStopAtLevel=1",)),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        # prints STARTED_LINE once clients are answered
        "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
        # prints FENCED_LINE
        "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.controller.ReplicationControlManager=info",
    )


def _escape(value: str) -> str:
    """Java's properties format takes a backslash for itself."""
    return value.replace("\\", "\\\\")
