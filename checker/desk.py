"""What the loops of all groups share."""

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from bridge.clock import Clock
from bridge.core.keyring import Keyring
from bridge.core.topics import InternalTopics
from bridge.directory import CheckBoard, MemoryCheckBoard, ProducerDirectory
from bridge.settler.observer import QueueOwner
from bridge.store.message_store import MessageStore
from checker.board_keeper import BoardKeeper
from checker.caller import CheckCaller
from checker.config import CheckerConfig
from checker.counts import CheckCounts
from checker.lanes import Moment
from checker.large_calls import LargeCalls
from checker.nonce import Nonces
from checker.round_recorder import RoundRecorder
from checker.slot_gate import SlotGate
from checker.timetable import Timetable

_LOG = structlog.get_logger()


def random_text() -> str:
    """22 characters that nobody can guess."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True, slots=True)
class CheckPorts:
    """What the checker works with. `random_text`: for nonces and ids; `jitter`: from [0, 1).

    `keyring`: what proves nonces to whoever takes answers over HTTP.
    `board`: shared with whoever lets groups claim their checks; one of its own shows them to nobody.
    """

    store: MessageStore
    directory: ProducerDirectory
    caller: CheckCaller
    clock: Clock
    random_text: Callable[[], str] = random_text
    jitter: Callable[[], float] = random.random
    board: CheckBoard = field(default_factory=MemoryCheckBoard)
    keyring: Keyring = field(default_factory=Keyring)


class Desk:
    """Ports, settings and state of the checker."""

    def __init__(self, ports: CheckPorts, topics: InternalTopics, config: CheckerConfig) -> None:
        self.ports = ports
        self.topics = topics
        self.config = config
        self.counts = CheckCounts()
        self.owners: dict[int, QueueOwner] = {}
        self.nonces = Nonces(ports.keyring, ports.random_text)
        self.gate = SlotGate(config.total_calls)
        self.large_calls = LargeCalls(config.large_calls)
        self.rendering = asyncio.Lock()  # bodies of one round at a time are in memory
        self.recorder = RoundRecorder(ports.directory, ports.clock, self.counts)
        self.keeper = BoardKeeper(ports.board, ports.clock, self.counts, ports.random_text)
        self.timetable = Timetable(
            lambda group: ports.directory.settings_of(group).times,
            report_wait_ms=config.report_wait_ms,
            max_lag_ms=config.max_lag_ms,
        )
        self.is_closing = False
        self._alerts: set[tuple[str, str]] = set()

    def moment_of(self, queue_id: int) -> Moment:
        """How a held queue stands now."""
        owner = self.owners[queue_id]
        return Moment(owner.now_ms(), owner.read_through_ms(), self.ports.clock.monotonic_ms())

    def now_of(self, queue_id: int) -> int:
        """Kafka's time for a queue; of a queue let go meanwhile nothing needs it, so the wall clock will do."""
        owner = self.owners.get(queue_id)
        return self.ports.clock.now_ms() if owner is None else owner.now_ms()

    def raise_alert(self, group: str, event: str) -> None:
        """Logs an event for people to act on, the first time until `clear_alert`."""
        if (group, event) not in self._alerts:
            self._alerts.add((group, event))
            _LOG.error(event, group=group)

    def clear_alert(self, group: str, event: str) -> None:
        """What was wrong with the group is over."""
        self._alerts.discard((group, event))
