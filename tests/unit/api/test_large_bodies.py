"""Large bodies: read as small ones are, in steps between which everybody else is served."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.web.large_bodies import (
    LARGE_BYTES,
    prepare_batch_in_steps,
    prepare_in_steps,
    resolution_in_steps,
    resolutions_in_steps,
)
from api.web.parse import parse_prepare, parse_prepare_batch, parse_resolution, parse_resolutions
from api.web.problems import Problem, Rejected
from bridge.turns import Steps, Turns
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import NDJSON, UNKNOWN_ID
from tests.support.live_server import serve

MAX_HEADERS = 3
IDS = st.sampled_from([UNKNOWN_ID, "x", 1])
HEADERS = st.lists(st.lists(st.sampled_from(["a", "\\", '"', None, 1]), min_size=1, max_size=3), max_size=5)
MESSAGES = st.fixed_dictionaries(
    {"topic": st.sampled_from(["t", "t", "t", 1])},
    optional={
        "key": st.sampled_from(["k", None, 1]),
        "value": st.sampled_from([None, "v", 'a"b\\', 1.50, [1, {"a": "b"}], {"a": []}, "x" * 2_000]),
        "value_base64": st.sampled_from(["AA==", "A"]),
        "headers": HEADERS | st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["v", None])),
        "headers_base64": HEADERS,
        "partition": st.sampled_from([0, -1]),
        "timestamp_ms": st.sampled_from([1, 0]),
        "more": st.just(1),
    },
)
PREPARES = st.fixed_dictionaries(
    {"producer_group": st.sampled_from(["g", "g", "g", "", 1]), "messages": st.lists(MESSAGES, max_size=3)},
    optional={
        "ordering_key": st.sampled_from(["o", ""]),
        "idempotency_key": st.sampled_from(["i", "\n"]),
        "max_checks": st.sampled_from([1, 0]),
        "more": st.just(1),
    },
)
BLANKS = st.sampled_from([b"", b" " * 16 * LARGE_BYTES])  # in front: with them it is read part by part
RESOLUTIONS = st.fixed_dictionaries(
    {"transaction_id": IDS, "resolution": st.sampled_from(["COMMIT", 12, "x"])},
    optional={"producer_group": st.sampled_from(["g", "", 1]), "nonce": st.sampled_from(["n", 1])},
)


def finish(steps: Steps[Any]) -> object:
    """What it returns, or the problem it raises."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value
    except Rejected as rejected:
        return rejected.problem


def told(result: object) -> object:
    """Calls as they are; of problems, where a document may have several, only the type and whether a place is told."""
    if isinstance(result, list):
        return [told(item) for item in result]
    return (result.type, bool(result.errors)) if isinstance(result, Problem) else result


def small(parse: Any, *arguments: Any) -> object:
    """What the reader of small bodies says."""
    try:
        return parse(*arguments)
    except Rejected as rejected:
        return rejected.problem


def padded(document: object, size: int) -> bytes:
    """With blanks between its tokens, so that it is cut everywhere."""
    return json.dumps(document, separators=("," + " " * size, ":" + " " * (size // 2))).encode()


@given(PREPARES, st.integers(0, 9_000), BLANKS)
def test_prepares_are_read_as_small_ones(document: object, size: int, blanks: bytes) -> None:
    """Or refused with the same type of problem."""
    raw = blanks + padded(document, size)
    assert told(finish(prepare_in_steps(raw, MAX_HEADERS, header_key="i"))) == told(
        small(lambda: parse_prepare(raw, MAX_HEADERS, header_key="i"))
    )


TWO_FAULTS = {"producer_group": "g", "messages": [{"topic": "t", "timestamp_ms": 0}, {"topic": "t", "more": 1}]}


@example([TWO_FAULTS], 0, b"")
@given(st.lists(PREPARES | st.just(7), max_size=4), st.integers(0, 9_000), BLANKS)
def test_batches_are_read_as_small_ones(items: object, size: int, blanks: bytes) -> None:
    """Each transaction by itself."""
    raw = blanks + padded({"transactions": items}, size)
    assert told(finish(prepare_batch_in_steps(raw, MAX_HEADERS))) == told(small(parse_prepare_batch, raw, MAX_HEADERS))


@given(st.lists(RESOLUTIONS | st.just(7), max_size=4), st.integers(0, 9_000), BLANKS)
def test_resolutions_are_read_as_small_ones(items: list[object], size: int, blanks: bytes) -> None:
    """As one document, and as lines."""
    raw = blanks + padded({"resolutions": items}, size)
    assert told(finish(resolutions_in_steps(raw))) == told(small(parse_resolutions, raw))
    for item in items:
        line = padded(item, size)
        assert told(finish(resolution_in_steps(line))) == told(small(parse_resolution, line))


def test_batch_of_long_texts_is_read_in_few_steps() -> None:
    """It is large for them alone; with as many members as a small one cannot have it is read part by part."""
    item = {"producer_group": "g", "messages": [{"topic": "t", "key": "k", "value": "x" * 300}]}
    counts = []
    for documents in ([item] * 1_000, [{**item, "messages": item["messages"] * 5}] * 1_000):
        raw = json.dumps({"transactions": documents}).encode()
        steps = prepare_batch_in_steps(raw, MAX_HEADERS)
        counts.append(sum(1 for _ in steps))
        assert finish(prepare_batch_in_steps(raw, MAX_HEADERS)) == small(parse_prepare_batch, raw, MAX_HEADERS)
    assert counts[0] == 1_000 // 256
    assert counts[1] > len(raw) // (2 * LARGE_BYTES)


@pytest.mark.parametrize("headers", [[["a", "b"]] * 9_000, {str(n): None for n in range(9_000)}, [['"\\', None]] * 4])
def test_headers_too_many_are_refused_before_they_are_read(headers: object) -> None:
    """Where they are told, whatever they are."""
    raw = json.dumps({"producer_group": "g", "messages": [{"topic": "t"}, {"topic": "t", "headers": headers}]}).encode()
    problem = finish(prepare_in_steps(raw, MAX_HEADERS))
    assert isinstance(problem, Problem)
    assert problem.errors == [("/messages/1/headers", "more than 3 headers")]


async def test_turns_are_taken_one_after_another() -> None:
    """However much long work there is, everybody else runs between any two steps."""
    turns, seen = Turns(), list[str]()

    def work(name: str) -> Steps[str]:
        for _ in range(3):
            seen.append(name)
            yield
        return name

    async def others() -> None:
        while True:
            seen.append(".")
            await asyncio.sleep(0)

    other = asyncio.ensure_future(others())
    assert await asyncio.gather(turns.run(work("a")), turns.run(work("b"))) == ["a", "b"]
    other.cancel()
    # both begin in one round of the loop; from then on each step has its own
    assert "".join(seen).partition("ab")[2].strip(".").replace("..", ".") in {"a.b.a.b", "b.a.b.a"}


ITEM = {"producer_group": "g", "messages": [{"topic": "t", "value": [1] * 400}]}
COUNT = 4 * LARGE_BYTES // 1_000
BODIES = {
    "prepare": ("/v1/transactions", {**ITEM, "messages": [{"topic": "t", "value": [1] * 90_000}] * 2}),
    "publish": ("/v1/messages", {**ITEM, "messages": [{"topic": "t", "value": [{}] * 90_000}]}),
    "batch": ("/v1/transactions/batch", {"transactions": [ITEM] * COUNT}),
    "resolutions": (
        "/v1/resolutions",
        {"resolutions": [{"transaction_id": UNKNOWN_ID, "resolution": "COMMIT", "nonce": 'n"' * 100}] * 900},
    ),
    "commit": (f"/v1/transactions/{UNKNOWN_ID}/commit", {"producer_group": "g", "more": [1] * 90_000}),
    "force": (
        f"/v1/transactions/{UNKNOWN_ID}/force",
        {"resolution": "COMMIT", "reason": "r", "more": {"a": [1] * 90_000}},
    ),
    "group": ("/v1/producer-groups/g", {"endpoints": [{"url": "u" * 500}] * 200}),
}


@pytest.mark.parametrize("name", BODIES)
async def test_loop_takes_turns_while_a_large_body_is_read(name: str, fake: FakeTransactions) -> None:
    """A turn for each window of it at least, on every way in."""
    path, document = BODIES[name]
    raw = json.dumps(document).encode()
    assert len(raw) > LARGE_BYTES
    services = make_services(fake)
    async with serve(services) as live:
        answer = await live.client.request(
            "PUT" if name == "group" else "POST", path, content=raw, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code < 500
    assert services.turns.taken >= len(raw) // (2 * LARGE_BYTES)


async def test_loop_takes_turns_while_large_lines_are_read(fake: FakeTransactions) -> None:
    """A long one, and many small ones."""
    services = make_services(fake)
    long, short = json.dumps({**ITEM, "messages": ITEM["messages"] * 60}).encode(), json.dumps(ITEM).encode()
    assert len(long) > LARGE_BYTES
    async with serve(services) as live:
        for lines in ([long] * 3, [short] * COUNT):
            before = services.turns.taken
            sent = b"\n".join(lines)
            answer = await live.client.post("/v1/transactions/batch", content=sent, headers=NDJSON)
            assert answer.text.count('"status":201') == len(lines)
            assert services.turns.taken - before >= len(sent) // (4 * LARGE_BYTES)
