"""Puts the door of a process together: settings, the node's service, the port."""

from api.remoting.callers import RemotingCallers
from api.remoting.door import Door, DoorConfig, DoorParts
from api.remoting.groups import ConnectedGroups
from api.remoting.requests import KeyRule
from api.remoting.server import PortConfig, RemotingServer
from api.settings import Settings
from api.web.certificates import Certificates
from bridge.node import Node

_BESIDE_BYTES = 512 * 1024  # of a frame: header and batch framing
_ANY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104 - not listened on, but not advertised


def open_door(settings: Settings, node: Node, certificates: Certificates | None) -> RemotingServer:
    """The door, listening already. Raises ConfigError if the port is taken."""
    wanted, limits, clock = settings.remoting, settings.limits, node.backing.clock
    has_tls = wanted.tls != "off"
    config = PortConfig(
        wanted.host,
        wanted.port,
        max_frame_bytes=limits.body_bytes + _BESIDE_BYTES,
        connections=wanted.connections,
        drain_s=settings.http.drain_seconds,
        is_plain_taken=wanted.tls != "required",
        certificates=certificates if has_tls else None,
    )

    def make(port: int) -> tuple[Door, ConnectedGroups]:
        host = "127.0.0.1" if wanted.host in _ANY_HOST else wanted.host
        address = wanted.advertise or f"{host}:{port}"
        groups = ConnectedGroups(node.claims, node.directory, lambda: node.nonces, clock, address)
        rule = KeyRule(wanted.key_from, frozenset(wanted.dropped_properties))
        door_config = DoorConfig(
            address, limits.message_bytes, rule, limits.requests_in_flight, settings.auto_create_groups
        )
        callers = RemotingCallers(node.signing)
        parts = DoorParts(node.transactions, node.directory, groups, callers, lambda: node.nonces, clock)
        return Door(parts, door_config), groups

    return RemotingServer(make, config)
