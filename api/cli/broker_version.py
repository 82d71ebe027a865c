"""Which Kafka a broker is: the highest metadata version that it supports tells the release.

Kafka names no version anywhere, and no client shows what `ApiVersions` answers, so this asks itself. Only where the
listener speaks neither TLS nor SASL. Source: KIP-511, KIP-584; the levels are Kafka's MetadataVersion.
"""

import socket
import struct

_TIMEOUT_S = 5.0
_MAX_ANSWER = 1_000_000
_API_VERSIONS, _VERSION = 18, 3
_FIRST_LEVEL_OF = {
    30: "4.3", 28: "4.2", 26: "4.1", 22: "4.0", 21: "3.9", 20: "3.8", 15: "3.7", 12: "3.6", 9: "3.5", 8: "3.4",
    7: "3.3",
}  # fmt: skip
_NEWEST_KNOWN = max(_FIRST_LEVEL_OF)


def ask_version(address: str) -> str | None:
    """The release of the broker at `host:port`, such as `4.3`; None if it does not say. Blocks; raises OSError."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.sendall(make_request())
        (length,) = struct.unpack(">i", _receive(connection, 4))
        if not 0 < length <= _MAX_ANSWER:
            return None
        return name_release(read_features(_receive(connection, length)).get("metadata.version"))


def make_request() -> bytes:
    """ApiVersions version 3, with its length before it."""
    name = b"outbox-bridge"
    head = struct.pack(">hhih", _API_VERSIONS, _VERSION, 1, len(name)) + name + b"\x00"
    body = bytes([len(name) + 1]) + name + b"\x02" + b"1" + b"\x00"
    return struct.pack(">i", len(head) + len(body)) + head + body


def read_features(answer: bytes) -> dict[str, int]:
    """The highest level of each feature that the broker supports; none where the answer is not understood."""
    reader = _Reader(answer)
    try:
        reader.skip(4)
        if reader.integer(2) != 0:
            return {}
        for _ in range(reader.unsigned() - 1):
            reader.skip(6)
            reader.skip_tags()
        reader.skip(4)
        for _ in range(reader.unsigned()):
            tag, size = reader.unsigned(), reader.unsigned()
            if tag == 0:
                return _read_ranges(reader)
            reader.skip(size)
    except (IndexError, UnicodeDecodeError):
        return {}
    return {}


def name_release(level: int | None) -> str | None:
    """The release that brought this metadata level."""
    if level is None or level < min(_FIRST_LEVEL_OF):
        return None
    release = _FIRST_LEVEL_OF[max(first for first in _FIRST_LEVEL_OF if first <= level)]
    return f"{release} or newer" if level > _NEWEST_KNOWN else release


def _read_ranges(reader: "_Reader") -> dict[str, int]:
    features = {}
    for _ in range(reader.unsigned() - 1):
        name = reader.text()
        reader.skip(2)
        features[name] = reader.integer(2)
        reader.skip_tags()
    return features


def _receive(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        part = connection.recv(length - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection; does its listener want TLS or SASL?")
        received += part
    return bytes(received)


class _Reader:
    """Kafka's flexible encoding. Raises IndexError at the end."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def skip(self, count: int) -> None:
        self.take(count)

    def take(self, count: int) -> bytes:
        taken = self._raw[self._at : self._at + count]
        if len(taken) != count:
            raise IndexError
        self._at += count
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    def text(self) -> str:
        return self.take(self.unsigned() - 1).decode()

    def skip_tags(self) -> None:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.skip(self.unsigned())
