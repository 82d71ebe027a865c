"""One or three real brokers, each with a proxy before its second door and a disk of its own that can be filled.

with running_cluster(folder, 3, disk_mb=256) as cluster:
    cluster.direct                                      # past the proxies
    cluster.proxied                                     # through them
    cluster.nodes[0].fill_disk()
"""

import base64
import os
import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.broker.dev_broker import DevBroker
from bridge.broker.ports import choose_free_port
from bridge.broker.server_properties import BrokerLayout, make_properties
from tests.support.kafka_proxy import KafkaProxy

_HOST = "127.0.0.1"
_BALLAST = "ballast"
_LEAST_PORTS = 4  # of a node: direct, behind the proxy, the proxy's, the controller's


@dataclass(frozen=True, slots=True)
class _Ports:
    direct: int
    behind: int
    proxy: int
    controller: int


class _Node(DevBroker):
    """A broker of a cluster: formatted with the id of all, and never alone with the controller."""

    cluster_id = ""

    def _format(self, layout: BrokerLayout, command: tuple[str, ...]) -> bool:
        if layout.log_folder.exists():
            return False
        fresh, properties = layout.folder / "log.new", layout.folder / "format.properties"
        properties.write_text(make_properties(layout, fresh))
        options = ("kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", str(properties))
        subprocess.run((*command, *options), cwd=layout.folder, capture_output=True, check=True, timeout=60)
        fresh.rename(layout.log_folder)
        return True

    def _fence(self, layout: BrokerLayout, command: tuple[str, ...]) -> None:
        """The others have taken its partitions over; there is no old session to wait for."""


@dataclass(slots=True)
class ClusterNode:
    """A broker, its two doors, and the folder on its disk. `is_mounted`: a file system of limited size."""

    broker: DevBroker
    proxy: KafkaProxy
    folder: Path
    is_mounted: bool

    @property
    def way_to_fill(self) -> str:
        """How the disk gets full."""
        return "tmpfs" if self.is_mounted else "RLIMIT_FSIZE"

    def fill_disk(self) -> None:
        """From now on the broker cannot write another byte."""
        if self.is_mounted:
            with (self.folder / _BALLAST).open("wb") as ballast:
                disk = os.statvfs(self.folder)
                with suppress(OSError):
                    os.posix_fallocate(ballast.fileno(), 0, disk.f_bavail * disk.f_frsize)
        elif self.broker.pid is not None:
            _, hard = resource.prlimit(self.broker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.broker.pid, resource.RLIMIT_FSIZE, (1, hard))

    def empty_disk(self) -> None:
        """There is space again. A broker that died of it has to be started; one that lives can write."""
        if self.is_mounted:
            (self.folder / _BALLAST).unlink(missing_ok=True)
        elif self.broker.pid is not None:
            _, hard = resource.prlimit(self.broker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@dataclass(slots=True)
class KafkaCluster:
    """Its brokers, in the order of their ids."""

    nodes: Sequence[ClusterNode]

    @property
    def direct(self) -> str:
        """`bootstrap.servers` of clients that pass no proxy."""
        return ",".join(node.broker.bootstrap for node in self.nodes)

    @property
    def proxied(self) -> str:
        """`bootstrap.servers` of clients that pass the proxies."""
        return ",".join(node.proxy.bootstrap for node in self.nodes)

    @property
    def replicas(self) -> int:
        """Replication factor of topics."""
        return len(self.nodes)


@contextmanager
def running_cluster(
    root: Path, brokers: int = 1, *, disk_mb: int = 512, heap_mb: int = 384, is_long_lived: bool = False
) -> Iterator[KafkaCluster]:
    """So many started brokers on free ports, with empty data in folders of `root`; they are gone afterwards."""
    with ExitStack() as stack:
        ports = _choose_ports(brokers)
        folders = [root / f"kafka-{number}" for number in range(1, brokers + 1)]
        mounted = [stack.enter_context(_limited_disk(folder, disk_mb)) for folder in folders]
        options = {"heap_mb": heap_mb, "is_long_lived": is_long_lived}
        made = [_make_broker(number, ports, folder, options) for number, folder in enumerate(folders, start=1)]
        for broker in made:
            stack.callback(broker.kill)
        _together([broker.start for broker in made])
        proxies = [KafkaProxy(each.proxy, each.behind) for each in ports]
        for proxy in proxies:
            stack.callback(proxy.close)
        parts = zip(made, proxies, folders, mounted, strict=True)
        yield KafkaCluster([ClusterNode(*each) for each in parts])


def _together(acts: Sequence[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(acts)) as threads:
        for started in [threads.submit(act) for act in acts]:
            started.result()


def _make_broker(number: int, ports: Sequence[_Ports], folder: Path, options: Mapping[str, Any]) -> DevBroker:
    own, count = ports[number - 1], len(ports)
    settings = {
        "node.id": str(number),
        "controller.quorum.voters": ",".join(f"{n}@{_HOST}:{p.controller}" for n, p in enumerate(ports, start=1)),
        "listeners": f"P://{_HOST}:{own.direct},X://{_HOST}:{own.behind},C://{_HOST}:{own.controller}",
        "advertised.listeners": f"P://{_HOST}:{own.direct},X://{_HOST}:{own.proxy}",
        "listener.security.protocol.map": "P:PLAINTEXT,X:PLAINTEXT,C:PLAINTEXT",
        "offsets.topic.num.partitions": str(count),
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.num.partitions": str(count),
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": str(min(2, count)),
        **({"broker.session.timeout.ms": "2000"} if count > 1 else {}),  # so soon the others take over
    }
    kind = DevBroker if count == 1 else _Node
    broker = kind(folder, port=own.direct, controller_port=own.controller, settings=settings, **options)
    if isinstance(broker, _Node):
        broker.cluster_id = _CLUSTER_ID
    return broker


_CLUSTER_ID = base64.urlsafe_b64encode(b"chaos of brokers").decode().rstrip("=")


@contextmanager
def _limited_disk(folder: Path, size_mb: int) -> Iterator[bool]:
    """A file system of this size in a new folder; False where nobody may mount one, then it is a plain folder."""
    folder.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={size_mb}m", "outbox-bridge-chaos", str(folder))
    try:
        mounted = subprocess.run(("mount", *options), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(("umount", "--lazy", str(folder)), capture_output=True, check=False)


def _choose_ports(brokers: int) -> list[_Ports]:
    chosen: set[int] = set()
    while len(chosen) < brokers * _LEAST_PORTS:
        chosen.add(choose_free_port())
    ports = iter(chosen)
    return [_Ports(next(ports), next(ports), next(ports), next(ports)) for _ in range(brokers)]
