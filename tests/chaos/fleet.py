"""The bridge's processes and those of its clients: started together, killed, paused, and started again."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bridge.broker.ports import choose_free_port
from tests.chaos.insist import insist
from tests.support.bridge_process import Bridge, BridgeProcess
from tests.support.memory_limit import MIB, memory_group, peak_bytes
from tests.support.source_tree import ROOT

ROLES = ("api", "settler", "projector")
_KILLED = ("settler", "settler", "settler", "api", "api", "projector")  # the weights of roles among those killed
_LOOK_S = 1.0
_ONE_QUEUE_BYTES, _FURTHER_QUEUE_BYTES, _PENDING_BYTES = 512 * MIB, 150 * MIB, 1_024  # as docs/operating.md states


@dataclass(slots=True)
class Slot:
    """A place for one process of a role, always at the same port."""

    role: str
    port: int
    process: BridgeProcess
    is_wanted: bool = True  # False while somebody keeps it down
    log_from: int = 0  # where the log of this process begins
    group: Path | None = None  # takes its id, and with it the limit of its memory

    @property
    def name(self) -> str:
        return f"{self.role} {self.port}"

    @property
    def lives(self) -> bool:
        return self.process.popen.poll() is None

    def limit(self) -> None:
        """Its memory, where there is a group for it. One that has ended already is left alone."""
        if self.group is not None:
            with suppress(OSError):
                self.group.write_text(str(self.process.popen.pid))

    def owned_queues(self) -> list[int]:
        """The queues it said last that it settles."""
        owned: set[int] = set()
        with self.process.log.open("rb") as log:
            log.seek(self.log_from)
            for line in log:
                if not line.endswith(b"\n"):  # it is being written
                    break
                if b'"queue_taken_over"' in line:
                    owned.add(json.loads(line)["queue"])
                elif b'"queue_let_go"' in line or b'"queue_dropped"' in line:
                    owned.discard(json.loads(line)["queue"])
        return sorted(owned)


class Fleet:
    """Two processes of each role. One that ends by itself, because what it needs is away, is started again.

    `groups`: those of the settlers; the kernel kills a settler above its limit. `peak_bytes`: the most that one had.
    """

    def __init__(self, bridge: Bridge, kafka: str, groups: Sequence[Path | None] = ()) -> None:
        self._bridge = bridge
        self._kafka = kafka
        self._stopping = threading.Event()
        self.exits = 0  # processes that ended by themselves
        self.hung: list[str] = []
        self.peak_bytes = 0
        self.slots = [self._make_slot(role) for role in ROLES for _ in range(2)]
        for slot, group in zip(self._settlers(), groups, strict=False):
            slot.group = group
            slot.limit()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Of the api processes."""
        return tuple(f"http://127.0.0.1:{slot.port}" for slot in self.slots if slot.role == "api")

    def wait_ready(self) -> None:
        """Returns when all are; from now on they are kept alive."""
        for slot in self.slots:
            slot.process.wait_ready(120)
        self._keeper.start()

    def choose(self, choice: random.Random) -> Slot | None:
        """One that lives, rather a settler; None if all of the role that was drawn are down."""
        role = choice.choice(_KILLED)
        living = [slot for slot in self.slots if slot.role == role and slot.lives and slot.is_wanted]
        return choice.choice(living) if living else None

    def kill(self, slot: Slot) -> None:
        """SIGKILL; it stays down until `start`."""
        slot.is_wanted = False
        slot.process.kill()
        slot.process.http.close()

    def start(self, slot: Slot) -> None:
        """Again, at the same port; not waited for."""
        slot.log_from = slot.process.log.stat().st_size
        slot.process = self._start(slot.role, slot.port)
        slot.limit()
        slot.is_wanted = True

    def replace(self, slot: Slot) -> None:
        """Ends it in peace, and starts another one; returns when that is ready."""
        self._stop(slot)
        slot.process.http.close()
        self.start(slot)
        slot.process.wait_ready(120)

    def stop(self, *roles: str) -> None:
        """All of these roles, in peace; they stay down until `start`."""
        slots = [slot for slot in self.slots if slot.role in roles]
        for slot in slots:
            self._stop(slot)

    def _stop(self, slot: Slot) -> None:
        slot.is_wanted = False
        if insist(slot.process.stop) == -signal.SIGKILL:  # by the first try
            self.hung.append(f"{slot.name} did not stop in peace")

    def close(self) -> None:
        """Ends all."""
        self._stopping.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        for slot in self.slots:
            slot.process.resume()
            slot.process.send(signal.SIGTERM)
        for slot in self.slots:
            with suppress(subprocess.TimeoutExpired):
                slot.process.__exit__(None, None, None)

    def logs(self) -> list[Path]:
        """What they said."""
        return [slot.process.log for slot in self.slots]

    def _keep(self) -> None:
        """Not too often: a start costs seconds of a processor."""
        while not self._stopping.wait(_LOOK_S):
            self._measure()
            for slot in self.slots:
                if slot.is_wanted and not slot.lives:
                    self.exits += 1
                    insist(partial(self.start, slot))

    def _settlers(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.role == "settler"]

    def _measure(self) -> None:
        for slot in self._settlers():
            with suppress(OSError, StopIteration):  # one that is ending has no memory any more
                self.peak_bytes = max(self.peak_bytes, peak_bytes(slot.process.popen.pid))

    def _make_slot(self, role: str) -> Slot:
        port = choose_free_port()
        return Slot(role, port, self._start(role, port))

    def _start(self, role: str, port: int) -> BridgeProcess:
        return self._bridge.start(role, kafka=self._kafka, port=port, is_shielded=True)


def settler_bytes(queues: int, pending: int) -> int:
    """The most memory that a settler of so many queues may have."""
    return _ONE_QUEUE_BYTES + (queues - 1) * _FURTHER_QUEUE_BYTES + pending * _PENDING_BYTES


@contextmanager
def running_fleet(bridge: Bridge, kafka: str, queues: int = 1, pending: int = 0) -> Iterator[Fleet]:
    """All ready; ended with the block. A settler may have to settle so many queues, and to remember so many pending."""
    with ExitStack() as stack:
        groups = [stack.enter_context(memory_group(settler_bytes(queues, pending))) for _ in range(2)]
        fleet = Fleet(bridge, kafka, groups)
        stack.callback(fleet.close)
        fleet.wait_ready()
        yield fleet


class ClientProcess:
    """A producer, consumer, endpoint or desk. After a kill it starts with a new name: nobody else used it before."""

    def __init__(self, module: str, run_file: Path, name: str, *arguments: str) -> None:
        self._module = module
        self._run_file = run_file
        self._name = name
        self._arguments = arguments
        self._starts = 0
        self._popen = self._start()

    @property
    def name(self) -> str:
        return self._name

    @property
    def lives(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """SIGKILL; it stays down until `start`."""
        self._popen.kill()
        self._popen.wait()

    def start(self) -> None:
        """Another one takes its place."""
        self._popen = self._start()

    def stop(self) -> None:
        """SIGTERM; not waited for."""
        self._popen.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Its exit code. SIGKILL after so long."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._starts += 1
        name = f"{self._name}-{self._starts}"
        command = (sys.executable, "-m", self._module, str(self._run_file), name, *self._arguments)
        with (self._run_file.parent / f"{self._name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, process_group=0)


def stop_all(clients: Sequence[ClientProcess], seconds: float) -> None:
    """SIGTERM to each, and SIGKILL to those that take longer."""
    for client in clients:
        client.stop()
    for client in clients:
        client.wait(seconds)
