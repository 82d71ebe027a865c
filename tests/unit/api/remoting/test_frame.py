"""Frames of RocketMQ's remoting protocol: what is written is read back, and nothing but BadFrame comes of garbage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.remoting.frame import (
    BadFrame,
    FrameBuffer,
    HeaderType,
    RemotingCommand,
    decode_frame,
    encode_frame,
    encode_stored,
)

_texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
_int32 = st.integers(-(1 << 31), (1 << 31) - 1)
_int16 = st.integers(-(1 << 15), (1 << 15) - 1)
_commands = st.builds(
    RemotingCommand,
    _int16,
    _int32,
    _int32,
    _int16,
    st.none() | _texts.filter(bool),
    st.dictionaries(_texts, _texts, max_size=6),
    st.binary(max_size=200),
    st.sampled_from(HeaderType),
)


@given(_commands)
def test_what_is_written_is_read_back(command: RemotingCommand) -> None:
    """Both encodings of the header carry the same."""
    assert decode_frame(encode_frame(command)) == command


@given(st.lists(_commands, max_size=5), st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_frames_are_found_however_the_stream_is_cut(commands: list[RemotingCommand], cuts: list[int]) -> None:
    """No frame is lost, doubled or read before it is whole."""
    raw, buffer, found, turn = b"".join(map(encode_frame, commands)), FrameBuffer(), list[RemotingCommand](), 0
    while raw:
        width = cuts[turn % len(cuts)]
        buffer.add(raw[:width])
        raw, turn = raw[width:], turn + 1
        found += buffer.take()
    assert found == commands
    assert len(buffer) == 0


@given(st.binary(max_size=300))
def test_garbage_is_a_bad_frame_or_waits_for_more(garbage: bytes) -> None:
    """Nothing else is raised."""
    buffer = FrameBuffer(1024)
    buffer.add(garbage)
    try:
        list(buffer.take())
    except BadFrame:
        return


@given(_commands, st.data())
def test_a_broken_frame_is_a_bad_frame_or_another_frame(command: RemotingCommand, data: st.DataObject) -> None:
    """One byte changed."""
    raw = bytearray(encode_frame(command))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_frame(bytes(raw))
    except BadFrame:
        return


def test_java_writes_this_header() -> None:
    """Bytes that rocketmq-client 5.5.0 sends for a route."""
    header = (
        b'{"code":105,"extFields":{"topic":"orders","acceptStandardJsonOnly":"true"},"flag":0,"language":"JAVA",'
        b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":505}'
    )
    command = decode_frame(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert (command.code, command.opaque, command.version) == (105, 7, 505)
    assert command.fields == {"topic": "orders", "acceptStandardJsonOnly": "true"}
    assert not command.is_one_way
    assert not command.is_response


def test_an_answer_is_found_by_its_opaque() -> None:
    """It is written as the request was, and is marked as an answer."""
    request = RemotingCommand(10, opaque=42, header_type=HeaderType.ROCKETMQ)
    answer = decode_frame(request.answer(0, None, {"msgId": "A"}))
    assert (answer.opaque, answer.is_response, answer.header_type) == (42, True, HeaderType.ROCKETMQ)


@given(_commands, st.integers(-(10**18), 10**18), st.integers(0, 1 << 63))
def test_success_is_written_as_any_answer(request: RemotingCommand, queue_id: int, offset: int) -> None:
    """Byte for byte, in both encodings."""
    message_id, transaction_id = f"7F00000100002694{offset:016X}", "0" * 28
    fields = {
        "msgId": message_id, "queueId": str(queue_id), "queueOffset": str(offset),
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "false", "transactionId": transaction_id,
    }  # fmt: skip
    written = encode_stored(request, message_id, queue_id, offset, transaction_id)
    assert written == request.answer(0, None, fields)


@pytest.mark.parametrize("size", [-1, 0, 3, 1025, 0x7FFFFFFF])
def test_a_length_beyond_the_limit_is_refused_before_anything_is_kept(size: int) -> None:
    """Four bytes are enough to know."""
    buffer = FrameBuffer(1024)
    buffer.add(struct.pack(">i", size))
    with pytest.raises(BadFrame):
        list(buffer.take())


@pytest.mark.parametrize("start", [b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n", b"GET / HTTP/1.1\r\n"])
def test_what_a_balancer_puts_before_frames_is_called_what_it_is(start: bytes) -> None:
    """Not a frame of a gigabyte, for which nobody knows a remedy."""
    buffer = FrameBuffer(1024)
    buffer.add(start)
    with pytest.raises(BadFrame, match="without PROXY protocol"):
        list(buffer.take())


@pytest.mark.parametrize("member", ["language", "anything"])
def test_depth_of_a_header_is_a_bad_frame(member: str) -> None:
    """Anybody who reaches the port could fill the log with the traces of what is no BadFrame."""
    header = b'{"code":34,"%b":%b' % (member.encode(), b"[" * 100_000)
    with pytest.raises(BadFrame):
        decode_frame(struct.pack(">ii", 4 + len(header), len(header)) + header)


def test_fields_of_cpp_clients_are_numbers() -> None:
    """RocketMQ reads them as their text: `defaultTopicQueueNums`, `queueId`, `sysFlag` and `flag` of C++ and of the
    Python client upon it. They lost their connection with each send."""
    header = b'{"code":310,"language":"CPP","extFields":{"e":2,"f":4,"k":false,"l":true,"h":-1,"i":"x","n":null}}'
    command = decode_frame(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert command.fields == {"e": "2", "f": "4", "k": "false", "l": "true", "h": "-1", "i": "x"}


@pytest.mark.parametrize("field", [b"1.5", b"[]", b"{}", b"9" * 5_000])
def test_fields_that_are_no_text_are_a_bad_frame(field: bytes) -> None:
    """Nobody sends them, and they have no one text that could be signed."""
    header = b'{"code":310,"extFields":{"e":%b}}' % field
    with pytest.raises(BadFrame):
        decode_frame(struct.pack(">ii", 4 + len(header), len(header)) + header)
