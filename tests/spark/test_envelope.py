"""The bridge's own codecs write, the job reads: all cases are rows of one batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from pyspark.sql import SparkSession

from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, LogStart, OpMessage, Position, encode_op, encode_position
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half, encode_parked, encode_published
from bridge.core.topics import murmur2
from bridge.core.transaction import Transaction, TransactionState, make_transaction_id
from spark.read.decode import (
    Decode,
    Records,
    add_bytes,
    add_ints,
    add_longs,
    decode_journal,
    decode_op,
    decode_parked,
    decode_real,
    finish,
    make_batch,
    seeds,
)
from spark.read.envelope import (
    ACT_ABANDON,
    ACT_CHECK,
    ACT_RESUME,
    COMMIT,
    EMPTY,
    OTHER_VERSION,
    UNKNOWN,
    EndSource,
    Event,
    Evidence,
    OpState,
    PreparedMessage,
    body_hash,
    key_hash,
)

TX = make_transaction_id(0, 1)
STORED_MS = 100_000
# no two are the same record, however alike they look
MESSAGES = [
    Message("orders", b"k", b"v"),
    Message("orders", None, b"v"),
    Message("orders", b"", b"v"),
    Message("orders", b"k", None),
    Message("orders", b"k", b""),
    Message("orders", b"k", b"v", [("a", None)]),
    Message("orders", b"k", b"v", [("a", b"")]),
    Message("orders", b"k", b"v", [("a", b"b"), ("x", None)]),
    Message("orders", b"k", b"v", [("a", None), ("b", b"x")]),
    Message("orders", b"k", b"v", [("a", b"1"), ("a", b"2")]),
    Message("orders", b"k", b"v", [("a", b"2"), ("a", b"1")]),
    Message("orders", b"\xff\x00", b"\xfe" * 40, [("\u00e4", b"\x01\x02")]),
]


def read(decode: Decode, messages: Sequence[Message]) -> list[Any]:
    """Their events; each lies at the offset of its position in the list."""
    first, count = messages[0], len(messages)
    columns = [m.key for m in messages], [m.value for m in messages], [m.headers for m in messages]
    records = Records(first.topic, max(first.queue_id, 0), range(count), [STORED_MS] * count, *columns)
    rows = make_batch(decode, records).to_pylist()
    return [Event(**{**row, "messages": _prepared(row["messages"])}) for row in rows]


def _prepared(messages: list[dict[str, Any]] | None) -> tuple[PreparedMessage, ...] | None:
    return None if messages is None else tuple(PreparedMessage(**message) for message in messages)


def shown(row: Event) -> dict[str, Any]:
    """What a row says besides its place and its hashes."""
    left_out = {"topic", "part", "off", "ms", "grp_id", "body", "content", "place", "okey", "topic_id", "messages"}
    return {name: value for name, value in row._asdict().items() if value is not None and name not in left_out}


def make_half(messages: Sequence[Message], **members: Any) -> Message:
    single = {"real_topic": messages[0].topic, "real_queue_id": messages[0].queue_id}
    group = members.pop("group", "shop")
    half = HalfMessage(TX, group, len(messages), 5, **(single if len(messages) == 1 else {}), **members)
    return encode_half(half, messages, "half", 0)


def make_op(**members: Any) -> Message:
    receipts = members.pop("receipts", ())
    t = Transaction(TX, "shop", 10, 5, 77, since_ms=5, **members)
    return Message("op", TX.encode(), encode_op(OpMessage(t, receipts)))


def test_one_content_has_one_hash_wherever_it_lies() -> None:
    """Alone or framed in the journal, parked, published; and other bytes, nulls or orders have others."""
    journal = read(decode_journal, [*(make_half([message]) for message in MESSAGES), make_half(MESSAGES)])
    alone = [row.messages[0].content for row in journal[:-1]]
    assert len(set(alone)) == len(MESSAGES)
    assert [message.content for message in journal[-1].messages] == alone
    published = [encode_published(message, TX, 1, 9, True) for message in MESSAGES]
    visible = read(decode_real, published)
    assert [row.content for row in visible] == alone
    assert [row.body for row in visible] == [row.body for row in journal[:-1]]
    assert journal[-1].body == sum(row.body for row in visible)
    assert {row.topic_id for row in journal + visible} == {visible[0].topic_id}
    halves = [make_half([MESSAGES[-1]]), make_half(MESSAGES)]
    stored = [StoredMessage(0, half.key, half.value, tuple(half.headers), 9) for half in halves]
    parked = read(decode_parked, [encode_parked(one, 3, "MAX_CHECKS", "parked", 0) for one in stored])
    assert [row.body for row in parked] == [journal[-2].body, journal[-1].body]
    assert [(row.tx, row.leg, row.grp, row.num) for row in parked] == [(TX, Evidence.PARKED, "shop", 3)] * 2


def test_effective_ordering_key_is_that_of_the_version_that_wrote_it() -> None:
    """With OKEY an ordering key orders within its group, a message key within group and topic; else both everywhere."""

    def ordering_hashes(ordering_hash: int | None) -> list[int]:
        made = [
            make_half([Message(topic, b"k", b"v")], group=group, ordering_key=key, ordering_hash=ordering_hash)
            for key in ("k", None)
            for group, topic in (("shop", "orders"), ("shop", "credits"), ("bank", "orders"))
        ]
        return [row.okey for row in read(decode_journal, made)]

    before, now = ordering_hashes(None), ordering_hashes(7)
    assert len(set(before)) == 1
    assert now[0] == now[1]
    assert len({*now, *before}) == 6


def test_journal_is_read() -> None:
    """Half messages with everything they may say, ends, acts; the rest is counted as unreadable."""
    plain = make_half([Message("orders", b"k", b"v")])
    version_2 = plain.headers[-1][1] or b""
    rows = read(
        decode_journal,
        [
            make_half(
                [Message("orders", b"k", b"v", queue_id=2)],
                timestamp_ms=44,
                immunity_s=7,
                max_checks=3,
                max_life_s=9,
                is_published=True,
                ordering_key="k",
            ),
            make_half([Message("orders", b"k", b"v")], idempotency_key="once", seen_ms=STORED_MS - 30_001),
            make_half([Message("orders", None, b"v")], idempotency_key="once", seen_ms=STORED_MS - 30_000),
            encode_end(EndRecord(TX, Resolution.ROLLBACK, Source.PRODUCER, 5), "half", 0),
            encode_end(EndRecord(TX, Resolution.UNKNOWN, Source.CHECK, 5, "shop", None, 3, "e", 200, 17), "half", 0),
            encode_act(ActRecord(TX, Act.RESUME, "me", "why", 5), "half", 0),
            encode_act(ActRecord(TX, Act.CHECK, "me", "why", 5), "half", 0),
            encode_act(ActRecord(TX, Act.ABANDON, "me", "why", 5), "half", 0),
            encode_end(EndRecord(TX, Resolution.COMMIT, Source.PRODUCER, 5, remark="x" * 512 + "y"), "half", 0),
            Message("half", b"x", b"y"),
            Message("half", b"x", b"y", [("properties", b"KIND\x01H\x02KIND\x01H\x02")]),
            Message("half", b"x", b"y", [("properties", version_2.replace(b"V\x011", b"V\x012"))]),
            Message("half", None, b"[]", [("properties", version_2.replace(b"N\x011", b"N\x012"))]),
            Message("half", None, b"[]", [("properties", version_2.replace(b"N\x011", b"N\x010"))]),
            Message(
                "half", None, b'[{"headers":[["a"],[]]},{}]', [("properties", version_2.replace(b"N\x011", b"N\x012"))]
            ),
            Message("half", None, b"v", [("properties", version_2.replace(b"REAL_TOPIC", b"OTHER"))]),
            Message("half", None, b"v", [("properties", version_2.replace(b"PGROUP", b"OTHER"))]),
        ],
    )
    half = {"tx": TX, "leg": Evidence.HALF, "grp": "shop", "n": 1, "code": UNKNOWN, "is_void": False, "asked": 0}
    own = {"immunity_ms": 7_000, "max_checks": 3, "life_ms": 9_000}
    assert shown(rows[0]) == {**half, **own, "code": COMMIT, "asked": 1}
    assert [(m.topic, m.part, m.ts) for m in rows[0].messages] == [("orders", 2, 44)]
    assert [shown(row) for row in rows[1:3]] == [{**half, "is_void": True}, half]
    assert rows[0].okey == rows[1].okey  # an ordering key orders with an equal message key
    assert rows[2].okey is None
    end = {"tx": TX, "leg": Evidence.END, "is_void": False}
    assert shown(rows[3]) == {**end, "code": 12, "src": EndSource.PRODUCER}
    check = {"code": UNKNOWN, "src": EndSource.CHECK, "num": 3, "latency_ms": 17, "grp": "shop"}
    assert shown(rows[4]) == {**end, **check}
    assert [(row.leg, row.code) for row in rows[5:8]] == [
        (Evidence.ACT, ACT_RESUME),
        (Evidence.ACT, ACT_CHECK),
        (Evidence.ACT, ACT_ABANDON),
    ]
    assert shown(rows[8]) == {**end, "code": COMMIT, "src": EndSource.PRODUCER, "remark": "x" * 512}  # no more is kept
    assert [row.leg for row in rows[9:]] == [Evidence.UNREADABLE] * 8
    assert [row.code == OTHER_VERSION for row in rows[9:]] == [False, False, True, *[False] * 5]


def test_check_that_was_fetched_has_no_latency() -> None:
    """Its answer is recorded without an endpoint, and with a latency of 0 that nobody has measured."""
    (row,) = read(
        decode_journal, [encode_end(EndRecord(TX, Resolution.COMMIT, Source.CHECK, 5, "shop", None, 3), "half", 0)]
    )
    assert (row.src, row.num, row.latency_ms) == (EndSource.CHECK, 3, None)


def test_op_topic_is_read() -> None:
    """States, receipts, positions, answers."""
    committed, rolled_back, parked = TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.PARKED
    receipts = [Receipt("orders", 2, 99), Receipt("credits", 0, None)]
    least = b'{"v":1,"state":"COMMITTED","group":"shop","at":2,"half":1,"appended_ms":5,"check_times":0,"receipts":%s}'
    rows = read(
        decode_op,
        [
            make_op(state=committed, at=20, by="check", ended_ms=6, check_times=2, receipts=receipts),
            make_op(state=committed, at=20, by="check", end=20, ended_ms=6, blocked=True, reason="gone"),
            make_op(state=rolled_back, at=20, by="producer", ended_ms=6),
            make_op(state=parked, at=20, by="timer", reason="MAX_CHECKS", parked=4),
            make_op(at=20),
            make_op(state=committed, at=21, by="check", end=20, ended_ms=6, abandoned=True, reason="gone"),
            Message("op", POSITION_KEY, encode_position(Position(31, 10, 5, "me"))),
            Message("op", POSITION_KEY, encode_position(Position(31, 10, 5, "me", start=LogStart(7, 0)))),
            Message("op", ANSWERS_KEY, b'{"v":1,"answers":[]}'),
            Message("op", TX.encode(), b'{"v":2,"state":"COMMITTED"}'),
            Message("op", TX.encode(), None),
            Message("op", b"stranger", b'{"v":1,"state":"COMMITTED"}'),
            *(
                Message("op", TX.encode(), least % receipts)
                for receipts in (b'[["orders"]]', b'[["orders","x",1]]', b"[[]]", b"[null]", b"[]")
            ),
        ],
    )
    op = {"tx": TX, "leg": Evidence.OP, "grp": "shop", "cause": 20, "half": 10}
    places = [{"topic": "orders", "part": 2, "off": 99}, {"topic": "credits", "part": 0, "off": None}]
    assert shown(rows[0]) == {**op, "code": OpState.COMMITTED, "num": 2, "n": 2, "receipts": places}
    assert shown(rows[1]) == {**op, "code": OpState.BLOCKED, "num": 0, "since_ms": 5}
    assert shown(rows[2]) == {**op, "code": OpState.ROLLED_BACK, "num": 0}
    assert shown(rows[3]) == {**op, "code": OpState.PARKED, "num": 0, "parked": 4, "since_ms": 5}
    assert shown(rows[4]) == {**op, "code": OpState.PREPARED, "num": 0, "since_ms": 5}
    assert shown(rows[5]) == {**op, "code": OpState.ABANDONED, "num": 0, "cause": 21}
    assert shown(rows[6]) == {"tx": "", "leg": Evidence.POSITION, "cause": 31}
    assert shown(rows[7]) == {"tx": "", "leg": Evidence.POSITION, "cause": 31, "half": 7, "parked": 0}
    assert [row.leg for row in rows[8:]] == [Evidence.ANSWERS, *[Evidence.UNREADABLE] * 7, Evidence.OP]
    assert [row.code for row in rows[9:11]] == [OTHER_VERSION, EMPTY]


def test_text_that_is_no_utf8_is_unreadable() -> None:
    """Whoever writes such a record does not end the job."""
    framed = make_half([Message("orders", b"k", b"v")] * 2)
    journal = read(decode_journal, [framed, replace(framed, value=b'[{"topic":"\xff"},{"topic":"orders"}]')])
    assert [row.leg for row in journal] == [Evidence.HALF, Evidence.UNREADABLE]
    values = (b'{"v":1,"state":"COMMITTED","group":"\xff"}', b'{"v":1,"state":5,"group":"\xff"}')
    assert [row.leg for row in read(decode_op, [Message("op", TX.encode(), value) for value in values])] == [
        Evidence.UNREADABLE,
        Evidence.UNREADABLE,
    ]


def test_receipts_and_records_of_one_place_have_one_hash() -> None:
    """So that the fold can compare them without reading lists."""
    record = encode_published(Message("orders", b"k", b"v"), TX, 2, 9, True)
    (visible,) = read(decode_real, [record])
    (told,) = read(decode_op, [make_op(state=TransactionState.COMMITTED, receipts=[Receipt("orders", 2, 0)])])
    assert visible.place == told.place


def test_other_producers_records_are_foreign() -> None:
    """Without our header, with another last header, with an id that cannot be one."""
    ours = ("transaction-id", TX.encode())
    headers = [[], [("x", b"1")], [ours, ("x", b"1")], [("transaction-id", b"t" * 28)], [("transaction-id", None)]]
    rows = read(decode_real, [Message("orders", b"k", b"v", one) for one in headers])
    assert [(row.tx, row.leg) for row in rows] == [("", Evidence.FOREIGN)] * len(headers)


def test_key_says_what_the_partition_is_chosen_by() -> None:
    """As Java clients compute it, here and in the bridge; of other producers' records nothing is asked."""
    keys = [bytes(range(200, 200 + size)) for size in range(13)] + [b"order-42", b"\xff" * 1_024]
    ours = [encode_published(Message("orders", key, b"v"), TX, 0, 9, True) for key in (*keys, None, b"k" * 1_025)]
    rows = read(decode_real, [*ours, Message("orders", b"k", b"v")])
    assert [row.spread for row in rows] == [*(murmur2(key) & 0x7FFFFFFF for key in keys), None, None, None]


def test_hash_is_the_same_alone_and_among_many() -> None:
    """Many are hashed at once, the longest one by one."""
    texts = [bytes(range(256)) * size + b"x" * (size % 32) for size in range(100)]
    among = add_bytes(seeds(len(texts)), texts).tolist()
    assert [add_bytes(seeds(1), [text]).tolist() for text in texts] == [[one] for one in among]


def test_hashes_are_those_of_sql(spark: SparkSession) -> None:
    """Of every length, of no bytes, of nothing, of numbers: what is compared in SQL was hashed here."""
    lengths = [*range(60), 999, 50_000]  # the last of them are hashed alone
    texts = [None, b"", *(bytes(range(97, 97 + size % 26)) + b"\xff\x00" * size for size in lengths)]
    numbers = [-(1 << 63), -1, 0, 1 << 40] * 20
    rows = [(text, number) for text, number in zip(texts, numbers, strict=False)]
    spark.createDataFrame(rows, "text BINARY, number BIGINT").createOrReplaceTempView("hashed")
    small = "SELECT text, number % 1000 AS number FROM hashed"
    told = spark.sql(f"""SELECT {key_hash("text")} AS one, {body_hash("text", "number")} AS two,
{body_hash("CAST(number AS INT)", "number IS NULL")} AS three FROM ({small})""")
    chain = add_bytes(seeds(len(rows)), texts)
    remainders = np.array([int(np.fmod(number, 1000)) for _, number in rows])
    ints = add_ints(add_ints(seeds(len(rows)), remainders), np.zeros(len(rows), np.bool_))
    found = [column.tolist() for column in (finish(chain), finish(add_longs(chain, remainders)), finish(ints))]
    made = [[row[name] for row in told.collect()] for name in ("one", "two", "three")]
    found[0][0] = None
    assert made == found


def test_odd_values_are_no_error_of_the_job() -> None:
    """Numbers that fit nowhere, text that is none, more brackets than anybody reads."""
    properties = (
        b"KIND\x01H\x02UNIQ_KEY\x01%s\x02V\x011\x02PGROUP\x01shop\x02BORN\x015\x02N\x01%s\x02"
        b"REAL_TOPIC\x01o\x02REAL_QID\x01%s\x02"
    )
    numbers = [b"1", b"99999999999999999999", b"9999999999", "\u0663".encode(), b"-", b""]
    named = [properties % (TX.encode(), count, part) for count in numbers for part in numbers]
    named += [properties.replace(b"N\x01", name + b"\x019" * 30 + b"\x02N\x01") for name in (b"MAX_LIFE", b"TS")]
    journal = read(decode_journal, [Message("half", None, b"[{}]", [("properties", one)]) for one in named])
    assert {row.leg for row in journal} == {Evidence.HALF, Evidence.UNREADABLE}
    values = [b"[" * 100_000, b'{"v":%d}' % 10**30, b'{"v":1,"at":%d}' % 10**30, b'{"group":"\\ud800"}', b"\xff", b""]
    assert {row.leg for row in read(decode_op, [Message("op", TX.encode(), value) for value in values])} == {0}
