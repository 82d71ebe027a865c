"""The journal's records on the wire."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core import record_codec
from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.properties import decode_properties, encode_properties, is_property_text
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source, is_void
from bridge.core.record_codec import (
    decode_body,
    decode_parked,
    decode_record,
    encode_act,
    encode_end,
    encode_half,
    encode_parked,
    encode_plain_half,
    encode_published,
)
from bridge.core.transaction import make_transaction_id

IDS = st.builds(make_transaction_id, st.integers(0, 1023), st.integers(0, 2**128 - 1))
TEXTS = st.text(max_size=20).filter(is_property_text)
GROUPS = st.from_regex(r"[A-Za-z0-9._-]{1,120}", fullmatch=True)
COUNTS = st.none() | st.integers(1, 10**6)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4).map(tuple)
MESSAGES = st.builds(
    Message, st.just("orders"), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9), HEADERS,
    st.integers(-1, 9), st.none() | st.integers(1, 2**41),
)  # fmt: skip


def stored(message: Message) -> StoredMessage:
    return StoredMessage(7, message.key, message.value, message.headers, 1000)


@st.composite
def halves(draw: st.DrawFn) -> tuple[HalfMessage, list[Message]]:
    messages = draw(st.lists(MESSAGES, min_size=1, max_size=3))
    only = messages[0]
    half = HalfMessage(
        draw(IDS), draw(GROUPS), len(messages), draw(st.integers(0, 2**41)),
        *((only.topic, only.queue_id, only.timestamp_ms) if len(messages) == 1 else ("", -1, None)),
        draw(st.none() | TEXTS), draw(COUNTS), draw(COUNTS), draw(COUNTS), request=draw(st.none() | TEXTS),
        is_published=draw(st.booleans()), ordering_hash=draw(st.none() | st.integers(0, 2**64 - 1)),
    )  # fmt: skip
    if draw(st.booleans()):
        half = replace(half, idempotency_key=draw(TEXTS), seen_ms=draw(st.integers(0, 2**41)))
    return half, messages


@given(IDS, GROUPS, st.integers(0, 2**41), MESSAGES, st.none() | st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_plain_half_message_is_written_as_any_other(
    transaction_id: str, group: str, born_ms: int, only: Message, ordering_hash: int | None, queue_id: int
) -> None:
    """The same bytes, headers, topic and queue."""
    half = HalfMessage(transaction_id, group, 1, born_ms, only.topic, only.queue_id, only.timestamp_ms)
    half = replace(half, ordering_hash=ordering_hash)
    plain = encode_plain_half(transaction_id, group, born_ms, only, ordering_hash, MessageQueue("H", queue_id))
    assert plain == encode_half(half, [only], "H", queue_id)


@given(halves())
def test_half_message_and_its_bytes_come_back(made: tuple[HalfMessage, list[Message]]) -> None:
    """Key, value, header list, partition and timestamp as prepared; null is not empty (I)."""
    half, messages = made
    record = stored(encode_half(half, messages, "H", 0))
    assert decode_record(record) == half
    assert decode_body(half, record) == messages


@given(halves())
def test_kind_and_id_can_be_sliced(made: tuple[HalfMessage, list[Message]]) -> None:
    """Byte 5 is the kind, bytes 16 to 43 the transaction id, and properties are the last header."""
    half, messages = made
    name, raw = encode_half(half, messages, "H", 0).headers[-1]
    assert name == "properties"
    assert raw is not None
    assert raw[5:6] == b"H"
    assert raw[16:44].decode() == half.transaction_id


@given(halves(), st.integers(0, 99))
def test_parked_copy_holds_the_same_body(made: tuple[HalfMessage, list[Message]], check_times: int) -> None:
    """A parked message can be published from its copy, byte for byte."""
    half, messages = made
    copy = stored(encode_parked(stored(encode_half(half, messages, "H", 0)), check_times, "MAX_CHECKS", "P", 0))
    assert decode_parked(copy) == half
    assert decode_body(half, copy) == messages
    properties = decode_properties(copy.headers[-1][1] or b"")
    assert (properties["KIND"], properties["WHY"]) == ("D", "MAX_CHECKS")
    assert properties["TRANSACTION_CHECK_TIMES"] == str(check_times)


@given(st.builds(
    EndRecord, IDS, st.sampled_from(Resolution), st.just(Source.CHECK), st.integers(0, 2**41), st.none() | TEXTS,
    st.none() | TEXTS, st.integers(0, 99), TEXTS, st.integers(0, 599), st.integers(0, 9999), st.none(), st.none(),
))  # fmt: skip
def test_end_of_a_check_comes_back(end: EndRecord) -> None:
    """Number, endpoint, status and latency survive, also in the next answer of the same call."""
    for answer in (end, end, replace(end, transaction_id=make_transaction_id(1, 7))):
        assert decode_record(stored(encode_end(answer, "H", 0))) == answer


@pytest.mark.parametrize("actor", ["me", "ü"])
def test_end_of_an_operator_comes_back(actor: str) -> None:
    """Who and why survive; it is the answer to no check."""
    end = EndRecord(ID, Resolution.ROLLBACK, Source.OPERATOR, 7, None, "a-1", actor=actor, reason="because")
    assert decode_record(stored(encode_end(end, "H", 0))) == end


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp_ms", 7), ("ordering_key", ""), ("immunity_s", 0), ("max_checks", 2), ("max_life_s", 3),
        ("idempotency_key", "k"), ("request", "a-1"), ("is_published", True), ("ordering_hash", 0),
    ],
)  # fmt: skip
def test_each_rare_field_of_a_half_message_comes_back_alone(field: str, value: object) -> None:
    """None of them hangs on another."""
    half = replace(HalfMessage(ID, "g", 1, 5, "orders", 2), **{field: value})
    assert decode_record(stored(encode_half(half, [Message("orders")], "H", 0))) == half


def test_records_go_where_they_are_sent() -> None:
    """Topic and queue as given; ends and acts have the transaction id as key, a framed list none."""
    end, act = EndRecord(ID, Resolution.COMMIT, Source.PRODUCER, 5), ActRecord(ID, Act.CHECK, "me", "why", 5)
    one, two = HalfMessage(ID, "g", 1, 5, "orders", 2), HalfMessage(ID, "g", 2, 5)
    message = Message("orders", b"k", b"v")
    made = [
        encode_half(one, [message], "H", 3), encode_half(two, [message] * 2, "H", 3), encode_end(end, "H", 3),
        encode_act(act, "H", 3), encode_parked(stored(encode_half(one, [message], "?", 0)), 1, "MAX_LIFE", "H", 3),
    ]  # fmt: skip
    assert [(record.topic, record.queue_id) for record in made] == [("H", 3)] * 5
    assert [record.key for record in made] == [b"k", None, ID.encode(), ID.encode(), b"k"]


def test_framed_list_is_byte_for_byte_this() -> None:
    """Several messages: JSON without spaces, bytes in base64, null apart from empty."""
    messages = [Message("a", b"k", None, (("h", b"1"), ("h", None)), 2, 17), Message("b", None, b"")]
    assert encode_half(HalfMessage(ID, "g", 2, 5), messages, "H", 0).value == (
        b'[{"topic":"a","qid":2,"key":"aw==","value":null,"headers":[["h","MQ=="],["h",null]],"ts":17},'
        b'{"topic":"b","qid":-1,"key":null,"value":"","headers":[],"ts":null}]'
    )


@given(st.builds(ActRecord, IDS, st.sampled_from(Act), TEXTS, TEXTS, st.integers(0, 2**41), st.none() | TEXTS))
def test_act_comes_back(act: ActRecord) -> None:
    """An operator's act survives."""
    assert decode_record(stored(encode_act(act, "H", 0))) == act


def with_properties(properties: dict[str, str]) -> StoredMessage:
    return StoredMessage(1, None, None, [("properties", encode_properties(properties))], 1)


ID = make_transaction_id(0, 1)


@pytest.mark.parametrize(
    "properties",
    [{"KIND": "H", "UNIQ_KEY": ID, "V": "2"}, {"KIND": "X", "UNIQ_KEY": ID, "V": "1"}, {"KIND": "H", "UNIQ_KEY": ID}],
)
def test_unknown_version_or_kind_is_told_apart_from_rubbish(properties: dict[str, str]) -> None:
    """Our prefix, but not ours to read: the queue halts."""
    with pytest.raises(UnknownRecordVersion):
        decode_record(with_properties(properties))


@pytest.mark.parametrize(
    "message",
    [
        StoredMessage(1, None, None, [], 1),
        StoredMessage(1, None, None, [("properties", None)], 1),
        StoredMessage(1, None, None, [("other", b"KIND\x01H\x02")], 1),
        with_properties({"UNIQ_KEY": ID, "KIND": "H"}),
        with_properties({"KIND": "H", "UNIQ_KEY": "short", "V": "1"}),
        with_properties({"KIND": "H", "UNIQ_KEY": ID, "V": "1", "PGROUP": "g", "N": "none"}),
        with_properties({"KIND": "E", "UNIQ_KEY": ID, "V": "1", "RES": "9", "SRC": "P", "BORN": "0"}),
        with_properties({"KIND": "E", "UNIQ_KEY": ID, "V": "1", "RES": "8", "SRC": "Q", "BORN": "0"}),
    ],
)
def test_rubbish_is_malformed(message: StoredMessage) -> None:
    """What cannot be parsed is quarantined, nothing else happens."""
    with pytest.raises(MalformedRecord):
        decode_record(message)


def ended_at(born: str) -> StoredMessage:
    return with_properties({"KIND": "E", "UNIQ_KEY": ID, "V": "1", "RES": "8", "SRC": "O", "BORN": born})


@pytest.mark.parametrize("born", [-(2**63), -1, 0, 2**63 - 1])
def test_times_have_64_bits(born: int) -> None:
    """All that SQL and Kafka take."""
    record = decode_record(ended_at(str(born)))
    assert isinstance(record, EndRecord)
    assert record.born_ms == born


@pytest.mark.parametrize("born", [str(2**63), str(-(2**63) - 1), "", " 1", "1 ", "+1", "1_0", "--1", "1.0", "٣", "0x1"])
def test_other_spellings_of_a_time_are_malformed(born: str) -> None:
    """What int() takes besides would not be written so again."""
    with pytest.raises(MalformedRecord):
        decode_record(ended_at(born))


@given(st.binary(max_size=200))
def test_any_header_is_a_record_or_a_named_error(raw: bytes) -> None:
    """A foreign record never raises anything else."""
    with contextlib.suppress(MalformedRecord, UnknownRecordVersion):
        decode_record(StoredMessage(1, None, None, [("properties", b"KIND\x01" + raw)], 1))


@given(st.binary(max_size=60))
def test_any_framed_list_is_a_body_or_malformed(value: bytes) -> None:
    """A broken list of several messages never raises anything else."""
    with contextlib.suppress(MalformedRecord):
        decode_body(HalfMessage(ID, "g", 2, 0), StoredMessage(1, None, value, [], 1))


def test_published_record_has_the_id_as_its_last_header_if_wanted() -> None:
    """What reaches the real topic is what was prepared plus at most the transaction id."""
    message = Message("orders", b"k", b"v", (("a", b"1"),))
    assert encode_published(message, ID, 3, 99, True) == Message(
        "orders", b"k", b"v", [("a", b"1"), ("transaction-id", ID.encode())], 3, 99
    )
    assert encode_published(message, ID, 3, 99, False).headers == (("a", b"1"),)


@pytest.mark.parametrize(("key", "seen", "appended", "void"), [
    ("k", 1000, 31_000, False), ("k", 1000, 31_001, True), ("k", 0, 10**12, True), (None, 0, 10**12, False),
])  # fmt: skip
def test_void_rule_is_of_the_record_alone(key: str | None, seen: int, appended: int, void: bool) -> None:
    """More than 30 s between look-up and append: void for everybody."""
    assert is_void(HalfMessage(ID, "g", 1, 0, idempotency_key=key, seen_ms=seen), appended) is void


@given(
    halves(), st.sampled_from(Resolution), st.none() | st.just("shop"), st.none() | st.just("a1-2"),
    st.none() | st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_usual_records_are_read_as_all_others(
    made: tuple[HalfMessage, list[Message]], resolution: Resolution, group: str | None, request: str | None,
    immunity_s: int | None, is_keyed: bool,
) -> None:  # fmt: skip
    """The short way for producers' records and the general way say the same."""
    half, messages = made
    plain = replace(
        half, group="shop", immunity_s=immunity_s, max_checks=None, max_life_s=None, request=request,
        idempotency_key=half.idempotency_key if is_keyed else None, seen_ms=half.seen_ms if is_keyed else 0,
        timestamp_ms=None,
    )  # fmt: skip
    end = EndRecord(half.transaction_id, resolution, Source.PRODUCER, half.born_ms, group, request)
    for record, raw in ((plain, encode_half(plain, messages, "H", 0)), (end, encode_end(end, "H", 0))):
        assert decode_record(stored(raw)) == record


_PLAIN = HalfMessage(ID, "shop", 1, 1_700_000_000_000, "orders", 3)
_ENDED = EndRecord(ID, Resolution.COMMIT, Source.PRODUCER, 1_700_000_000_000, "shop")


@pytest.mark.parametrize("record", [
    _PLAIN, replace(_PLAIN, ordering_hash=0xFEDCBA9876543210), replace(_PLAIN, immunity_s=60),
    replace(_PLAIN, request="a1-2"), replace(_PLAIN, request="a1-2", ordering_hash=17),
    replace(_PLAIN, idempotency_key="order-1", seen_ms=99), replace(_PLAIN, is_published=True, real_queue_id=-1),
    replace(_PLAIN, ordering_key="customer-7", ordering_hash=5),
    _ENDED, replace(_ENDED, group=None, resolution=Resolution.ROLLBACK), replace(_ENDED, request="a1-2"),
    replace(_ENDED, request="a1-2", group=None),
])  # fmt: skip
def test_usual_record_is_never_read_in_the_general_way(
    record: HalfMessage | EndRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one with another id whose rest has been read before."""
    other = replace(record, transaction_id=make_transaction_id(5, 2**100))
    monkeypatch.setattr(record_codec, "decode_any", None)
    assert [decode_record(stored(write(one))) for one in (record, other)] == [record, other]


@pytest.mark.parametrize("record", [
    _PLAIN, replace(_PLAIN, ordering_hash=17), _ENDED, replace(_ENDED, request="a1-2"),
    EndRecord(ID, Resolution.COMMIT, Source.CHECK, 5, "shop", None, 1, "http://shop/check", 200, 12),
])  # fmt: skip
def test_what_records_have_in_common_is_read_once(
    record: HalfMessage | EndRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a producer's, and all answers of a call: only the id, the ordering key and the request differ."""
    assert decode_record(stored(write(record))) == record
    for name in ("decode_any", "_read_half_middle", "_read_end_middle"):
        monkeypatch.setattr(record_codec, name, None)
    other = replace(record, transaction_id=make_transaction_id(6, 2**101))
    if isinstance(other, EndRecord):
        other = replace(other, request=other.request and "c8-44")
    elif other.ordering_hash is not None:
        other = replace(other, ordering_hash=0xFEDCBA9876543210)
    assert decode_record(stored(write(other))) == other


def test_what_only_one_record_can_have_is_not_remembered() -> None:
    """An idempotency key or a request of a half message would push out what others have in common."""
    before = len(record_codec._half_middles)
    for own in ({"request": "b7-1"}, {"idempotency_key": "order-2", "seen_ms": 98}):
        record = replace(_PLAIN, group="only-here", **own)
        assert decode_record(stored(write(record))) == record
    assert len(record_codec._half_middles) == before


def write(record: HalfMessage | EndRecord) -> Message:
    if isinstance(record, EndRecord):
        return encode_end(record, "H", 0)
    return encode_half(record, [Message("orders", None, b"v", (), record.real_queue_id)], "H", 0)
