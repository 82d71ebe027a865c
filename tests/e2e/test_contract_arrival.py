"""Section 6 of the contract: what arrives in the real topics is what was prepared (I), in order (O)."""

import base64
import random
import secrets
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from confluent_kafka import Producer

from tests.support.bridge_process import Record, create_topics, read_committed
from tests.support.running_service import Json, RunningService

SEED = 4_711
Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def in_base64(raw: bytes | None) -> str | None:
    """As a body carries bytes."""
    return None if raw is None else base64.b64encode(raw).decode()


def members_of(content: Content) -> Json:
    """The members of a message with this content. Nulls have no base64 form."""
    key, value, headers = content
    members: Json = {"headers_base64": [[name, in_base64(raw)] for name, raw in headers]}
    members |= {"key": None} if key is None else {"key_base64": in_base64(key)}
    members |= {"value": None} if value is None else {"value_base64": in_base64(value)}
    return members


def content_of(record: Record) -> Content:
    """What a consumer read, without our header, which is the last one."""
    assert record.headers[-1] == ("transaction-id", str(record.transaction_id).encode())
    return record.key, record.value, record.headers[:-1]


def commit_all(service: RunningService, ids: Sequence[str]) -> list[Json]:
    """Ends them in one list; their views."""
    entries = [{"transaction_id": i, "resolution": "COMMIT"} for i in ids]
    results: list[Json] = service.other.post("/v1/resolutions", {"resolutions": entries}).json()["results"]
    assert {result["status"] for result in results} == {200}, results[:3]
    return results


def random_content(rng: random.Random) -> Content:
    """Keys, values and headers of every kind that could be mixed up."""
    texts = [None, b"", b"\x00", b"null", b"0", b"\xff\xfe", "ä€𝄞".encode(), rng.randbytes(rng.randint(1, 300))]
    names = ["", "a", "a", "source", "Ünïcode", "x" * 300, "content-type"]
    headers = tuple((rng.choice(names), rng.choice(texts)) for _ in range(rng.randint(0, 6)))
    return rng.choice(texts), rng.choice(texts), headers


def test_bytes_arrive_as_prepared(service: RunningService) -> None:
    """300 transactions of one to three messages: null is not empty, header order, repeats and bytes are kept (I)."""
    rng = random.Random(SEED)
    contents = [[random_content(rng) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(300)]
    group = service.new_group("bytes")
    ids = service.prepare_many(
        [{"producer_group": group, "messages": [service.message(**members_of(c)) for c in each]} for each in contents]
    )
    views = commit_all(service, ids)
    found = {(r.partition, r.offset): r for r in service.read(ids, service.topics.orders)}
    for each, view in zip(contents, views, strict=True):
        records = [found.pop((receipt["partition"], receipt["offset"])) for receipt in view["receipts"]]
        assert [content_of(record) for record in records] == each
        assert {record.transaction_id for record in records} == {view["transaction_id"]}
    assert found == {}, "more arrived than was prepared"


def test_hundred_messages_are_one_transaction(service: RunningService) -> None:
    """The most there may be, over three topics: all of them, each where its receipt says."""
    topics = (service.topics.orders, service.topics.credits, service.topics.line)
    messages = [{"topic": topics[n % 3], "value": str(n)} for n in range(100)]
    view = service.publish(service.new_group("hundred"), *messages)
    found = {(r.topic, r.partition, r.offset): r.value for r in service.read([view["transaction_id"]], *topics)}
    assert [found[tuple(receipt.values())] for receipt in view["receipts"]] == [b"%d" % n for n in range(100)]
    assert len(found) == 100


def test_json_values_arrive_exactly_as_sent(service: RunningService) -> None:
    """Compact JSON; big integers, decimals, escapes and the order of members stay what they were."""
    values = {
        '{ "b" : 1, "a" : [ ] }': b'{"b":1,"a":[]}',
        "12345678901234567890123456789": b"12345678901234567890123456789",
        "0.10000000000000000000000001": b"0.10000000000000000000000001",
        "1.50e+400": b"1.50e+400",
        "-0.0": b"-0.0",
        "true": b"true",
        '[1, "a  b\\u0020\\/ \\"", null]': b'[1,"a  b\\u0020\\/ \\"",null]',
        '"plain \\u00e4 \\n text"': "plain ä \n text".encode(),
        '""': b"",
        '"null"': b"null",
        "null": None,
    }
    head = f'{{"producer_group":"{service.new_group("json")}","messages":[{{"topic":"{service.topics.orders}","value":'
    json_type = {"Content-Type": "application/json"}
    bodies = [f"{head}{sent}}}]}}".encode() for sent in values]
    answers = [service.api.http.post("/v1/messages", content=body, headers=json_type) for body in bodies]
    ids = [answer.json()["transaction_id"] for answer in answers]
    arrived = {record.transaction_id: record.value for record in service.read(ids, service.topics.orders)}
    assert [arrived[i] for i in ids] == list(values.values())


def test_headers_of_an_object_keep_their_order(service: RunningService) -> None:
    """The convenient form; text is UTF-8 and null is no value."""
    headers = {"z": "1", "a": None, "ä": "ö"}
    transaction_id = service.prepare(service.new_group("object"), service.message(headers=headers))
    service.end(transaction_id, "commit")
    (record,) = service.read([transaction_id], service.topics.orders)
    assert record.headers[:-1] == (("z", b"1"), ("a", None), ("ä", "ö".encode()))


def test_answers_show_bodies_without_loss(service: RunningService) -> None:
    """`include=messages` gives JSON and text where the bytes are such, base64 where they are not; else sizes."""
    messages: list[dict[str, Any]] = [
        service.message(key="k", value={"n": 12345678901234567890}, headers=[["h", "1"], ["h", None]], partition=1),
        {"topic": service.topics.credits, "key_base64": "/w==", "value_base64": "AP8="}
        | {"headers_base64": [["b", "/w=="]]},
        {"topic": service.topics.line, "value": "text", "timestamp_ms": 1_700_000_000_000},
        service.message(value=None),
    ]
    transaction_id = service.prepare(service.new_group("shown"), *messages)
    expected = [
        messages[0],
        messages[1],
        {**messages[2], "key": None, "headers": []},
        {**messages[3], "key": None, "headers": []},
    ]
    for _ in ("prepared", "committed"):
        assert service.get(transaction_id, params={"include": "messages"})["messages"] == expected
        service.end(transaction_id, "commit")
    sizes = [message["value_bytes"] for message in service.get(transaction_id)["messages"]]
    assert sizes == [len('{"n":12345678901234567890}'), 2, 4, None]


def test_partition_and_timestamp_asked_for_are_kept(service: RunningService) -> None:
    """Else the partition follows the key, and the timestamp is that of the commit."""
    asked = [
        service.message(key="same", partition=partition, timestamp_ms=1_600_000_000_000 + partition)
        for partition in (2, 0, 1)
    ]
    transaction_id = service.prepare(service.new_group("places"), *asked, service.message(key="same"))
    (between,) = service.read([service.publish(service.new_group("places"))["transaction_id"]])
    view = service.end(transaction_id, "commit")
    records = {r.offset * 10 + r.partition: r for r in service.read([transaction_id], service.topics.orders)}
    found = [records[r["offset"] * 10 + r["partition"]] for r in view["receipts"]]
    assert [(r.partition, r.timestamp_ms) for r in found[:3]] == [
        (2, 1_600_000_000_002),
        (0, 1_600_000_000_000),
        (1, 1_600_000_000_001),
    ]
    assert found[3].timestamp_ms >= between.timestamp_ms, "not the time of its prepare"


def test_topic_with_append_time_overrules_the_timestamp(service: RunningService, kafka: str) -> None:
    """What was asked for is taken, and the broker's own time arrives."""
    topic = f"appendtime.{secrets.token_hex(4)}"
    create_topics(kafka, {topic: 1}, {"message.timestamp.type": "LogAppendTime"})
    group = service.new_group("append")
    view = service.publish(group, {"topic": topic, "timestamp_ms": 1}, {"topic": service.topics.line})
    records = service.read([view["transaction_id"]], topic, service.topics.line)
    times = {record.topic: record.timestamp_ms for record in records}
    assert abs(times[topic] - times[service.topics.line]) < 60_000


def test_partitions_are_those_of_java_clients(service: RunningService, kafka: str) -> None:
    """The same keys through the client library's own murmur2 partitioner land on the same partitions."""
    rng = random.Random(SEED)
    keys = [b"", b"\x00", b"42", "ä".encode(), *[rng.randbytes(rng.randint(1, 40)) for _ in range(200)]]
    name = f"murmur.{secrets.token_hex(4)}"
    create_topics(kafka, {f"{name}.theirs": 7, f"{name}.ours": 7})
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})
    for number, key in enumerate(keys):
        producer.produce(f"{name}.theirs", key=key, value=b"%d" % number)
    assert producer.flush(30) == 0
    messages = [
        {"topic": f"{name}.ours", "key_base64": in_base64(key), "value": str(number)} for number, key in enumerate(keys)
    ]
    group = service.new_group("murmur")
    commit_all(service, service.prepare_many([{"producer_group": group, "messages": [m]} for m in messages]))
    theirs, ours = [
        {record.value: (record.key, record.partition) for record in read_committed(kafka, [f"{name}.{who}"])}
        for who in ("theirs", "ours")
    ]
    assert len(theirs) == len(keys)
    assert ours == theirs


def test_messages_without_a_key_are_spread(service: RunningService) -> None:
    """Not all on one partition."""
    group = service.new_group("spread")
    ids = service.prepare_many([{"producer_group": group, "messages": [service.message(value="v")]}] * 60)
    assert {r["receipts"][0]["partition"] for r in commit_all(service, ids)} == {0, 1, 2}


def test_order_of_commits_is_order_of_records(service: RunningService) -> None:
    """200 transactions with 8 ordering keys, prepared in one order and committed in another, at two processes (O)."""
    rng = random.Random(SEED)
    group = service.new_group("order")
    keys = [f"okey-{rng.randrange(8)}" for _ in range(200)]
    ids = service.prepare_many(
        [
            {"producer_group": group, "ordering_key": key, "messages": [{"topic": service.topics.line, "value": key}]}
            for key in keys
        ]
    )
    key_of = dict(zip(ids, keys, strict=True))
    committed = rng.sample(ids, len(ids))
    for number, transaction_id in enumerate(committed):
        process = (service.api, service.other)[number % 2]
        path = f"/v1/transactions/{transaction_id}/commit"
        assert process.post(path, headers={"Prefer": "respond-async"}).status_code == 202
    for transaction_id in committed[-20:]:
        service.end(transaction_id, "commit")
    commit_all(service, ids)
    arrived = [str(record.transaction_id) for record in service.read(ids, service.topics.line)]
    assert by_key(arrived, key_of) == by_key(committed, key_of)


def by_key(ids: Sequence[str], key_of: dict[str, str]) -> dict[str, list[str]]:
    """The ids of each key in their order."""
    ordered = sorted(ids, key=lambda i: key_of[i])
    return {key: list(each) for key, each in groupby(ordered, key=lambda i: key_of[i])}


def test_order_follows_the_first_key_where_no_ordering_key_is_given(service: RunningService) -> None:
    """Transactions of one message key are published in the order of their commits, across topics (O)."""
    group = service.new_group("keyorder")
    transactions = [
        {
            "producer_group": group,
            "messages": [service.message(key="same", value=str(n)), {"topic": service.topics.line, "value": str(n)}],
        }
        for n in range(60)
    ]
    ids = service.prepare_many(transactions)
    committed = random.Random(SEED).sample(ids, len(ids))
    commit_all(service, committed)
    for topic in (service.topics.orders, service.topics.line):
        assert [record.transaction_id for record in service.read(ids, topic)] == committed
