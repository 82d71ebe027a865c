"""RocketMQ's messages on the wire: properties, ids, bodies, batches, and what a check shows."""

import struct
import sys
import zlib
from collections.abc import Callable
from ipaddress import IPv4Address

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from api.remoting.message import (
    CheckedMessage,
    UnreadableMessage,
    encode_checked,
    make_message_id,
    parse_properties,
    read_body,
    split_batch,
)
from bridge.core.properties import write_properties

_names = st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=20)


@given(st.dictionaries(_names, _names, max_size=8), st.booleans())
def test_properties_are_read_with_and_without_their_last_end(properties: dict[str, str], has_end: bool) -> None:
    """Clients up to 4.9 leave the last 0x02 out."""
    text = write_properties(properties)
    assert parse_properties(text if has_end else text.removesuffix("\x02")) == properties


@given(st.text(max_size=100))
def test_no_text_is_too_odd_for_properties(text: str) -> None:
    """What is no pair is passed over, as RocketMQ does."""
    assert all(parse_properties(text))


@given(st.ip_addresses(v=4), st.integers(0, 65_535), st.integers(0, (1 << 63) - 1))
def test_message_ids_say_where(host: IPv4Address, port: int, offset: int) -> None:
    """In 32 digits: address, port, offset; clients take the offset out of them."""
    text = make_message_id(f"{host}:{port}", offset)
    assert text == f"{int(host):08X}{port:08X}{offset:016X}"


def test_a_name_is_no_address() -> None:
    """A route may advertise a name; the id has no room for one."""
    assert make_message_id("bridge.example:9876", 5) == f"{0:08X}{9876:08X}{5:016X}"


@given(st.binary(max_size=500))
@pytest.mark.parametrize("flag", [0x1, 0x301, 0x305])
def test_zlib_bodies_are_inflated(flag: int, body: bytes) -> None:
    """0x1 is what clients of version 4 write."""
    assert read_body(zlib.compress(body), flag, 500) == body


@given(st.binary(max_size=500))
@pytest.mark.parametrize(("flag", "compress"), [(0x101, lz4.frame.compress), (0x201, zstandard.compress)])
def test_bodies_of_lz4_and_zstd_are_inflated(flag: int, compress: Callable[[bytes], bytes], body: bytes) -> None:
    """Their packages are those of the extra `rocketmq`."""
    assert read_body(compress(body), flag, 500) == body


@pytest.mark.parametrize(("flag", "module"), [(0x101, "lz4.frame"), (0x201, "zstandard")])
def test_without_its_package_the_refusal_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, flag: int, module: str
) -> None:
    """The text reaches the client's exception."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnreadableMessage, match=r"compressType=ZLIB.*outbox-bridge\[rocketmq\]"):
        read_body(b"x", flag, 500)


@pytest.mark.parametrize(("flag", "body", "reason"), [
    (0x1, zlib.compress(bytes(1001)), "more than 1000"),
    (0x1, b"none", "is not"),
    (0x1, zlib.compress(b"abc" * 50)[:-6], "ends early"),
    (0x101, lz4.frame.compress(bytes(1001)), "more than 1000"),
    (0x101, b"none of its frames", "is not"),
    (0x101, lz4.frame.compress(b"abc" * 50)[:-6], "ends early"),
    (0x201, zstandard.compress(bytes(1001)), "more than 1000"),
    (0x201, b"none of its frames", "is not"),
    (0x201, zstandard.compress(b"abc" * 50)[:-6], "ends early|is not"),
])  # fmt: skip
def test_what_cannot_be_inflated_is_refused_with_a_reason(flag: int, body: bytes, reason: str) -> None:
    """A bomb is not inflated beyond the limit."""
    with pytest.raises(UnreadableMessage, match=reason):
        read_body(body, flag, 1000)


def frame(body: bytes, properties: bytes) -> bytes:
    """A message of a batch, written by hand."""
    size = 20 + len(body) + 2 + len(properties)
    return struct.pack(">iiiii", size, 0, 0, 3, len(body)) + body + struct.pack(">h", len(properties)) + properties


def test_a_batch_is_split() -> None:
    """Order and bytes stay."""
    found = split_batch(frame(b"one", b"TAGS\x01a\x02") + frame(b"", b""))
    assert [(m.flag, m.body, m.properties) for m in found] == [(3, b"one", "TAGS\x01a\x02"), (3, b"", "")]


def test_batch_of_more_messages_than_a_transaction_has_is_split_no_further() -> None:
    """Two kilobytes, inflated to a megabyte of empty messages, kept everybody waiting for a second."""
    broken = frame(b"", b"")[:-1]
    with pytest.raises(UnreadableMessage, match="more than 100 messages"):
        split_batch(frame(b"", b"") * 101 + broken)


@given(st.binary(max_size=120), st.integers(0, 60))
def test_broken_batches_are_refused(tail: bytes, cut: int) -> None:
    """Nothing else is raised, and it ends."""
    try:
        split_batch((frame(b"one", b"a\x01b\x02") + tail)[: 35 + cut])
    except UnreadableMessage:
        return


def test_a_check_shows_the_message() -> None:
    """Read as MessageDecoder.decode does, field by field."""
    raw = encode_checked(CheckedMessage("orders", b"paid", {"UNIQ_KEY": "K1", "PGROUP": "shop"}, 1_700_000_000_000, 9))
    size, magic, crc, queue, flag, queue_offset, place, system, born = struct.unpack_from(">iIiiiqqiq", raw)
    assert (size, magic, queue, flag) == (len(raw), 0xDAA320A7, 0, 0)
    assert (queue_offset, place, system, born) == (9, 9, 4, 1_700_000_000_000)
    assert crc == zlib.crc32(b"paid") & 0x7FFFFFFF
    at = struct.calcsize(">iIiiiqqiq") + 8 + 8 + 8 + 4 + 8
    assert struct.unpack_from(">i4s", raw, at) == (4, b"paid")
    assert raw[at + 8 : at + 15] == b"\x06orders"
    (width,) = struct.unpack_from(">h", raw, at + 15)
    assert raw[at + 17 :] == b"UNIQ_KEY\x01K1\x02PGROUP\x01shop\x02"
    assert width == len(raw[at + 17 :])
