"""`unshare --net --mount python -m tests.attack.inner_network`: hostile endpoints in a network of their own.

The namespace has a name server that lies, a server with a public address that redirects inwards, and a witness of every
packet on every interface. Prints what was called, how each call ended, and the packets that went where none may go.
"""

import asyncio
import fcntl
import ipaddress
import itertools
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme

from bridge.clock import SystemClock
from checker.call import EndpointCall
from checker.endpoint_guard import CallbackPolicy, is_public_address, parse_networks
from checker.http_caller import HttpCaller

PUBLIC, FAR = "8.8.4.4", "9.9.9.9"  # the first is ours here; nobody answers at the second
INWARD_V4 = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.254", "100.64.0.1", "100.127.255.254", "127.0.0.1", "127.1.2.3",
    "168.63.129.16", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.254", "192.0.0.1", "192.0.0.170",
    "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.0.1", "192.168.255.254", "192.175.48.1",
    "198.18.0.1", "198.19.255.254", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255",
)  # fmt: skip
INWARD_V6 = (
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::1", "2001:db8::1", "2002:7f00:1::1",
    "2002:a9fe:a9fe::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "ff05::2",
)  # fmt: skip
LITERALS = (
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "0",
    "0.0.0.0", "127.0.0.1.", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]",
    "[fe80::1%25lo]", "169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "[fd00:ec2::254]",
    "10.0.0.1", "0x0a000001", "167772161", "012.0.0.1", "192.168.1.1", "3232235777", "[fc00::1]", "localhost",
    "localhost.", "ip6-localhost", "127.0.0.1:22", "127.0.0.1:9092", "%31%32%37.0.0.1", "\u2460\u2461\u2466.0.0.1",
    "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "user@127.0.0.1", "good.test@127.0.0.1",
    "127.0.0.1#good.test", "127.0.0.1?good.test", "good.test\\@127.0.0.1", "127.0.0.1\\good.test",
    "good.test:80@10.0.0.1",
)  # fmt: skip
SCHEMES = ("http", "gopher", "file", "ftp", "dict", "ldap", "ws", "unix", "jar", "javascript")
_RECORD_TYPES = {1: 4, 28: 16}
_MOST_AT_ONCE = 40
_ANSWERED = {"None", "refused", "redirect", "status"}


class Zone:
    """What the name server says: of each name its addresses, or one after the other at each question."""

    def __init__(self) -> None:
        self.fixed: dict[str, tuple[str, ...]] = {"good.test": (PUBLIC,), "far.test": (FAR,)}
        self.turning: dict[str, Iterator[str]] = {}
        for n, address in enumerate((*INWARD_V4, *INWARD_V6)):
            self.fixed[f"inward-{n}.test"] = (address,)
            self.fixed[f"mixed-{n}.test"] = (FAR, address)
            if ":" not in address:
                self.turning[f"turning-{n}.test"] = itertools.cycle((FAR, address))

    def find(self, name: str, kind: int) -> list[bytes]:
        """The addresses of this kind, as they go over the wire."""
        is_turned = name in self.turning and kind == 1
        found = (next(self.turning[name]),) if is_turned else self.fixed.get(name, ())
        packed = [socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in found]
        return [one for one in packed if len(one) == _RECORD_TYPES.get(kind)]


class NameServer(asyncio.DatagramProtocol):
    """Answers every question from the zone, to be kept for no second. Source: RFC 1035, section 4."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode("ascii", "replace"))
            at += 1 + length
        kind = int.from_bytes(data[at + 1 : at + 3], "big")
        found = self._zone.find(".".join(labels).lower(), kind)
        head = data[:2] + b"\x81\x80\x00\x01" + len(found).to_bytes(2, "big") + b"\0\0\0\0"
        records = [b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(one)) + one for one in found]
        self._transport.sendto(head + data[12 : at + 5] + b"".join(records), addr)


class Witness(threading.Thread):
    """Sees all packets of the namespace. `went`: where those went that are no question to the name server."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.went: Counter[str] = Counter()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))

    def run(self) -> None:
        while True:
            packet, (_, protocol, *_) = self._socket.recvfrom(65_535)
            if protocol == 0x0800:
                header = (packet[0] & 15) * 4
                self._note(packet[9], packet[16:20], packet[header : header + 4])
            elif protocol == 0x86DD:
                self._note(packet[6], packet[24:40], packet[40:44])

    def _note(self, transport: int, destination: bytes, ports: bytes) -> None:
        is_name_service = transport == socket.IPPROTO_UDP and 53 in struct.unpack(">HH", ports)
        if transport in {socket.IPPROTO_TCP, socket.IPPROTO_UDP} and not is_name_service:
            self.went[str(ipaddress.ip_address(destination))] += 1

    def find_inward(self) -> dict[str, int]:
        """Packets to addresses that are no public ones."""
        return {text: count for text, count in self.went.items() if not is_public_address(ipaddress.ip_address(text))}


def make_network() -> None:
    """Loopback, a public address, and a way out that leads nowhere as long as the process is there."""
    tunnel = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH", b"out", 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
    for command in (
        "link set lo up", f"addr add {PUBLIC}/32 dev lo", "addr add 203.0.114.1/24 dev out", "link set out up",
        "route add default dev out", "-6 addr add 2a00:1::1/64 dev out nodad", "-6 route add default dev out",
    ):  # fmt: skip
        subprocess.run(["ip", *command.split()], check=True)
    with tempfile.NamedTemporaryFile("w", delete=False) as names:
        names.write("nameserver 127.0.0.1\noptions timeout:10 attempts:2\n")
    subprocess.run(["mount", "--bind", names.name, "/etc/resolv.conf"], check=True)


def make_urls(zone: Zone) -> list[str]:
    """Everything hostile."""
    named = [f"https://{name}/check" for name in (*zone.fixed, *zone.turning) if name not in {"good.test", "far.test"}]
    spelled = [f"https://{literal}/check" for literal in LITERALS]
    ported = [f"https://inward-{n}.test:{port}/" for n in (6, 10, 12) for port in (22, 80, 3306, 8443, 9092)]
    return named + spelled + ported + [f"{scheme}://inward-6.test/" for scheme in SCHEMES]


async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wherever the path says, to an address inside."""
    line = await reader.readline()
    status, target = line.split()[1].decode().strip("/").split("/", 1)
    writer.write(f"HTTP/1.1 {status} Go\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    writer.close()


async def attack() -> dict[str, Any]:
    """All calls, then what the witness has seen; then a call that it must see."""
    make_network()
    zone, witness = Zone(), Witness()
    witness.start()
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: NameServer(zone), ("127.0.0.1", 53))
    authority = trustme.CA()
    shown, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("good.test").configure_cert(shown)
    authority.configure_trust(trust)
    server = await asyncio.start_server(redirect, PUBLIC, 443, ssl=shown)
    caller = HttpCaller(CallbackPolicy(), SystemClock(), ssl_context=trust)
    turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def call(url: str, at: HttpCaller = caller, timeout_ms: int = 3_000) -> str:
        async with turns:
            reply = await at.call(EndpointCall(url, {}, b"{}", timeout_ms, 4_096))
            return str(reply.failure)

    inward = [f"http://{address}/" for address in INWARD_V4[:12]]
    inward += ["http://[::1]/", "file:///etc/passwd", "//10.0.0.1/"]
    redirects = [f"https://good.test/{status}/{target}" for status in (301, 302, 303, 307, 308) for target in inward]
    urls = make_urls(zone)
    ended = dict(zip(urls, await asyncio.gather(*map(call, urls)), strict=True))
    again = [url for url in urls if "turning" in url]  # what was public at the first question is not at the next
    repeated = await asyncio.gather(*[call(url) for _ in range(3) for url in again])
    redirected = await asyncio.gather(*[call(url, timeout_ms=30_000) for url in redirects])
    far = await call("https://far.test/")
    seen = witness.find_inward()
    open_caller = HttpCaller(CallbackPolicy(parse_networks(["127.0.0.0/8"])), SystemClock())
    await call("http://127.0.0.1:9/", open_caller, 30_000)
    await asyncio.sleep(0.2)
    server.close()
    return {
        "calls": len(ended) + len(repeated) + len(redirected),
        "ended": Counter([*ended.values(), *repeated]),
        "reached": sorted(url for url, failure in ended.items() if failure in _ANSWERED),
        "redirected": Counter(redirected),
        "far": [far, witness.went[FAR]],
        "inward": seen,
        "control": witness.find_inward(),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(attack())))
