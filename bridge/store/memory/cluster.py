"""A whole in-memory cluster: topics, transaction coordinator, group coordinator, and time."""

from bridge.clock import Clock
from bridge.store.memory.groups import GroupCoordinator
from bridge.store.memory.link import Agenda, Faults, Link, NoFaults
from bridge.store.memory.log import MemoryLog
from bridge.store.memory.producers import TransactionCoordinator


class MemoryCluster:
    """What outlives every client process. Time is the given clock's; nothing happens in between by itself."""

    def __init__(self, clock: Clock, faults: Faults | None = None, session_timeout_ms: int = 10_000) -> None:
        self.cluster_id = "memory-cluster"
        self.faults = faults
        self.agenda = Agenda(clock)
        self.log = MemoryLog(self.agenda)
        self.groups = GroupCoordinator(self.log, session_timeout_ms)
        marker_delay_ms = (faults or NoFaults()).marker_delay_ms
        self.producers = TransactionCoordinator(self.log, marker_delay_ms)

    def connect(self, client: str) -> Link:
        """A client process's way to the cluster."""
        return Link(client, self.agenda, self.faults)
