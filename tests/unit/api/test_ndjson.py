"""Newline-delimited JSON: cutting lines, answering them while more come."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.limits import HttpLimits
from api.web.ndjson import MAX_LINES, Line, LineSplitter
from api.web.problems import Problem
from api.web.server import ServeConfig
from bridge.clock import SystemClock
from bridge.core.grants import Grant, Verb
from bridge.core.message import Message
from bridge.service.access import AccessConfig, AccessService
from bridge.service.contract import PrepareCall
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import open_new_database
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import NDJSON
from tests.support.live_server import HOST, LiveServer, serve

LINE = b'{"producer_group":"g","messages":[{"topic":"t"}]}\n'
BATCH = "/v1/transactions/batch"
SMALL = HttpLimits(body_bytes=100, receive_s=0.3)


def split(chunks: list[bytes], limits: HttpLimits = SMALL) -> list[Line]:
    """All lines of a stream."""
    splitter = LineSplitter(limits)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


def results(response: httpx2.Response) -> list[Any]:
    """Every line of the answer."""
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


@given(st.lists(st.binary(max_size=90).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))), st.data())
def test_lines_do_not_depend_on_chunks(lines: list[bytes], data: st.DataObject) -> None:
    """However the stream is cut, the lines are the same; empty ones are no lines."""
    stream = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert split(chunks) == [line for line in lines if line.strip(b" \t")]


def test_line_that_is_too_long_is_one_problem_in_its_place() -> None:
    """It is not collected, and the lines behind it are read."""
    first, long, last = split([b"a\n", *[b"x" * 60] * 1_000, b"\nb\r\n"])
    assert (first, last) == (b"a", b"b")
    assert isinstance(long, Problem)
    assert long.type.slug == "body-too-large"


async def test_many_lines_are_answered_in_order(live: LiveServer, fake: FakeTransactions) -> None:
    """Far more than a batch may have; each list that is passed on is bounded."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield LINE * 100

    answer = results(await live.client.post(BATCH, content=body(), headers=NDJSON))
    assert [line["status"] for line in answer] == [201] * 5_000
    assert [line["queue_offset"] for line in answer] == list(range(5_000))
    assert max(fake.batches) <= MAX_LINES


async def test_bad_lines_are_problems_in_their_places(live: LiveServer) -> None:
    """The others are decided."""
    body = LINE + b"{\n\n" + b'{"producer_group":"g","messages":[]}\n' + LINE.rstrip()
    answer = results(await live.client.post(BATCH, content=body, headers=NDJSON))
    assert [line["status"] for line in answer] == [201, 400, 422, 201]
    assert answer[2]["problem"]["errors"][0]["pointer"] == "/messages"
    assert answer[2]["problem"]["type"].endswith("/invalid-request")


async def test_no_lines_are_no_results(live: LiveServer) -> None:
    """An empty stream is no error."""
    assert results(await live.client.post(BATCH, content=b"", headers=NDJSON)) == []


async def test_answers_come_while_the_request_is_open(live: LiveServer) -> None:
    """A client may look at each answer before it sends the next line."""
    reader, writer = await asyncio.open_connection(HOST, live.port)
    writer.write(b"POST /v1/transactions/batch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n")
    writer.write(b"Content-Type: application/x-ndjson\r\n\r\n")
    for _ in range(3):
        writer.write(b"%x\r\n%b\r\n" % (len(LINE), LINE))
        assert b'"status":201' in await asyncio.wait_for(reader.readuntil(b"}\n"), 5)
    writer.write(b"0\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
    writer.close()


@pytest.mark.parametrize("start", [LINE, b""], ids=["after an answer", "before any"])
async def test_stream_that_stalls_inside_a_line_is_ended(start: bytes, fake: FakeTransactions) -> None:
    """What was decided is told; then, or at once, comes a problem, and the connection ends."""
    async with serve(make_services(fake, limits=SMALL), ServeConfig(port=0, head_s=0.2)) as live:
        sent = start + LINE[:-1]
        chunk = b"%x\r\n%b\r\n" % (len(sent), sent)
        answer = await live.send_raw(
            b"POST /v1/transactions/batch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: application/x-ndjson\r\n\r\n" + chunk
        )
    assert (b'"status":201' in answer) == bool(start)
    assert b"request-timeout" in answer
    assert answer.startswith(b"HTTP/1.1 200 " if start else b"HTTP/1.1 408 ")


async def test_resolutions_are_taken_as_lines(live: LiveServer, fake: FakeTransactions) -> None:
    """Also answers to checks: the nonce tells which."""
    prepared = results(await live.client.post(BATCH, content=LINE * 2, headers=NDJSON))
    ids = [line["transaction_id"] for line in prepared]
    lines = [
        {"transaction_id": ids[0], "resolution": "COMMIT"},
        {"transaction_id": ids[1], "resolution": 12, "nonce": "3-abcdefghijklmnop"},
        {"transaction_id": ids[0], "resolution": "ROLLBACK"},
        {"transaction_id": ids[0], "resolution": "COMMIT", "nonce": "x"},
    ]
    body = "\n".join([json.dumps(line) for line in lines])
    answer = results(await live.client.post("/v1/resolutions", content=body, headers=NDJSON))
    assert [line["status"] for line in answer] == [200, 200, 409, 422]
    assert [line.get("state") for line in answer[:2]] == ["COMMITTED", "ROLLED_BACK"]
    assert answer[2]["problem"]["state"] == "COMMITTED"
    assert [call.check_number for call in fake.ended] == [0, 3, 0]


async def send_for_ever(writer: asyncio.StreamWriter, lines: bytes) -> None:
    """Chunk after chunk, until the connection ends."""
    while True:
        writer.write(b"%x\r\n%b\r\n" % (len(lines), lines))
        await writer.drain()


async def test_client_that_takes_no_answers_is_cut_off(fake: FakeTransactions) -> None:
    """The bridge stops reading what it could only answer into memory, and ends the connection."""
    async with serve(make_services(fake), ServeConfig(port=0, send_s=0.3)) as live:
        _, writer = await asyncio.open_connection(HOST, live.port, limit=1)
        writer.write(b"POST /v1/transactions/batch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n")
        writer.write(b"Content-Type: application/x-ndjson\r\n\r\n")
        with pytest.raises(ConnectionError):
            await send_for_ever(writer, b"{\n" * 1_000)
        assert (await live.client.get("/livez")).status_code == 200


@pytest.mark.parametrize("path", [BATCH, "/v1/resolutions"])
@pytest.mark.parametrize("is_revoked", [True, False], ids=["key revoked", "grants taken"])
async def test_stream_ends_with_the_rights_of_its_caller(
    path: str, is_revoked: bool, fake: FakeTransactions, tmp_path: Path
) -> None:
    """It can last for days, and none of them after its key is revoked: what was answered before stays."""
    access = AccessService(open_new_database(tmp_path), SystemClock(), AccessConfig(is_open=False))
    who = Who("ops", "")
    await access.put("shop", [Grant(Verb.PREPARE, "g"), Grant(Verb.DECIDE, "g")], who)
    made = await access.make_key("shop", None, None, who)
    assert isinstance(made, MadeKey)
    view = await fake.prepare([PrepareCall("g", [Message("t")])])
    end = {"transaction_id": view[0].transaction_id, "resolution": "COMMIT", "producer_group": "g"}
    line = LINE if path == BATCH else json.dumps(end).encode() + b"\n"
    async with serve(replace(make_services(fake), access=access)) as live:
        reader, writer = await asyncio.open_connection(HOST, live.port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n".encode())
        writer.write(f"Authorization: Bearer {made.text}\r\nContent-Type: application/x-ndjson\r\n\r\n".encode())
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        assert re.search(rb'"status":20[01]', await asyncio.wait_for(reader.readuntil(b"}\n"), 5))
        await (access.revoke(made.key.key_id, who) if is_revoked else access.put("shop", [], who))
        known = fake.rights_of_calls[-1]
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        answer = await asyncio.wait_for(reader.readuntil(b"}\n"), 5)
        if is_revoked:
            assert b'"status":401' in answer
            assert await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
            assert fake.rights_of_calls[-1] is known, "nothing more was asked"
        else:
            assert not fake.rights_of_calls[-1].may_somewhere(Verb.PREPARE)
        writer.close()
