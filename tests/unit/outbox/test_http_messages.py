"""Answers as bytes: framing, and what is none."""

import gc
import weakref

import pytest

from outbox.client import http_messages
from outbox.client.http_messages import AnswerReader, BrokenAnswer

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: Chunked\r\n\r\n3;note=x\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"

WHOLE = {
    "length": (OK + b"Content-Length: 3\r\nRetry-After: 7\r\n\r\nabc", b"abc", True),
    "length twice": (OK + b"Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc", b"abc", True),
    "nothing": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "chunks": (CHUNKED, b"abc0123456789", True),
    "chunks and a length": (
        CHUNKED.replace(b"\r\n\r\n3;", b"\r\nContent-Length: 9\r\n\r\n3;"),
        b"abc0123456789",
        False,
    ),
    "interim": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", b"a", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a", True),
    "close": (OK + b"Connection: keep-alive, Close\r\nContent-Length: 1\r\n\r\na", b"a", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", False),
    "more than asked": (OK + b"Content-Length: 1\r\n\r\nabc", b"a", False),
}

BROKEN = {
    "other protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "other version": b"HTTP/2 200\r\n\r\n",
    "switch": b"HTTP/1.1 101 Switching\r\n\r\n",
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
    "signed length": OK + b"Content-Length: +3\r\n\r\n",
    "length of words": OK + b"Content-Length: three\r\n\r\n",
    "coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "chunk without a size": OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunk too long": OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
    "header without a name": OK + b": x\r\n\r\n",
    "folded header": OK + b"A: x\r\n y\r\n\r\n",
    "blank before the colon": OK + b"A : x\r\n\r\n",
    "endless head": OK + b"A: " + b"x" * 70_000,
    "endless chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 70_000,
}


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize(("raw", "body", "is_reusable"), WHOLE.values(), ids=WHOLE)
def test_whole_answers(raw: bytes, body: bytes, is_reusable: bool, step: int) -> None:
    """However they are cut, the same answer."""
    reader = AnswerReader()
    for start in range(0, len(raw), step):
        assert not reader.is_whole or body == b"a"  # what nobody asked for may follow
        reader.feed(raw[start : start + step])
    assert (reader.is_whole, bytes(reader.body), reader.is_reusable) == (True, body, is_reusable)


def test_answer_is_not_left_to_the_garbage_collector() -> None:
    """Its body may be large: it is gone with the last who has it."""
    reader = AnswerReader()
    assert reader.feed(OK + b"Content-Length: 3\r\n\r\nabc")
    seen = weakref.ref(reader)
    gc.disable()
    try:
        del reader
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_what_is_no_answer(raw: bytes) -> None:
    """Is not taken for one."""
    with pytest.raises(BrokenAnswer):
        AnswerReader().feed(raw)


@pytest.mark.parametrize("raw", [*(raw for raw, _, _ in WHOLE.values() if not raw.endswith(b"abc"))])
def test_answer_that_ends_too_early(raw: bytes) -> None:
    """At whichever byte, it is broken, never shorter."""
    for end in range(len(raw)):
        reader = AnswerReader()
        if reader.feed(raw[:end]):
            continue
        with pytest.raises(BrokenAnswer):
            reader.end()


def test_answer_without_a_length_ends_with_its_connection() -> None:
    """And that connection is not used again."""
    reader = AnswerReader()
    assert not reader.feed(OK + b"\r\nabc")
    reader.end()
    assert (reader.is_whole, bytes(reader.body), reader.is_reusable) == (True, b"abc", False)


def test_retry_after_is_kept_as_it_is() -> None:
    """Reading it is another's task."""
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 503 Busy\r\nretry-after:  7 \r\nContent-Length: 0\r\n\r\n")
    assert (reader.status, reader.retry_after) == (503, "7")


def test_answers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers cannot fill the memory."""
    monkeypatch.setattr(http_messages, "MAX_ANSWER_BYTES", 10)
    with pytest.raises(BrokenAnswer, match="more than 10 bytes"):
        AnswerReader().feed(OK + b"Content-Length: 11\r\n\r\nabcdefghijk")
