"""The trace of a prepare. Source: W3C Trace Context, level 1."""

import pytest

from bridge.core.message import Message
from bridge.core.transaction import (
    add_trace,
    digest_bits,
    find_common_trace,
    find_trace,
    find_trace_id,
    is_sampled,
    read_trace,
)

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = PARENT.replace(b"b7", b"c7")


@pytest.mark.parametrize("given", [PARENT, PARENT[:-2] + b"00", b" " + PARENT + b"\t", b"01" + PARENT[2:] + b"-later"])
def test_valid_parent_is_kept(given: bytes) -> None:
    """Of any version but ff: a later one may have more parts."""
    assert read_trace([given]) == (("traceparent", given.strip()),)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [b""],
        [PARENT, PARENT],
        [PARENT.upper()],
        [PARENT + b"-more"],
        [PARENT + b"\r\nX: y"],
        [b"ff" + PARENT[2:]],
        [b"00-" + b"0" * 32 + PARENT[35:]],
        [PARENT[:36] + b"0" * 16 + b"-01"],
        [PARENT[:-1]],
        [b"01" + PARENT[2:] + b"later"],
        [b"0af7651916cd43dd8448eb211c80319c"],
    ],
)
def test_invalid_parent_is_dropped_and_its_state_with_it(given: list[bytes]) -> None:
    """As if there were none."""
    assert read_trace(given, [b"a=1"]) == ()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([b"rojo=00f067,congo=t61rcWkgMzE"], b"rojo=00f067,congo=t61rcWkgMzE"),
        ([b"a=1 , ,b=2", b"t@v=3"], b"a=1,b=2,t@v=3"),
        ([b"a=1,a=2"], b""),
        ([b"A=1"], b""),
        ([b"a"], b""),
        ([b"a=b=c"], b""),
        ([b"a=\x80"], b""),
        ([b",".join(b"k%d=1" % n for n in range(32))], b",".join(b"k%d=1" % n for n in range(32))),
        ([b",".join(b"k%d=1" % n for n in range(33))], b""),
        ([b"a=" + b"x" * 200 + b",b=" + b"y" * 250 + b",c=" + b"z" * 100], b"c=" + b"z" * 100),
        (
            [b",".join(b"k%d=%b" % (n, b"x" * 97) for n in range(6))],
            b",".join(b"k%d=%b" % (n, b"x" * 97) for n in range(5)),
        ),
    ],
)
def test_state_is_joined_and_bounded(given: list[bytes], kept: bytes) -> None:
    """An invalid one is dropped alone; of one that is too long first the long members go, then the last ones."""
    state = (("tracestate", kept),) if kept else ()
    assert read_trace([PARENT], given) == (("traceparent", PARENT), *state)


def test_trace_is_added_behind_the_headers_of_a_message() -> None:
    """A message that names a trace itself keeps its own, and a state without a parent means nothing."""
    trace = read_trace([PARENT], [b"a=1"])
    plain = Message("t", b"k", b"v", [("h", b"1")], 2, 3)
    own = Message("t", headers=[("traceparent", OTHER)])
    stray = Message("t", headers=[("tracestate", b"b=2")])
    assert add_trace([plain, own, stray], trace) == [
        Message("t", b"k", b"v", [("h", b"1"), *trace], 2, 3),
        own,
        Message("t", headers=list(trace)),
    ]


def test_trace_is_not_part_of_what_an_idempotency_key_names() -> None:
    """A repeat of a call is made within another span."""
    first = Message("t", b"k", b"v", [("h", b"1")])
    digests = {
        digest_bits("g", "key", False, None, add_trace([first], read_trace(parents)))
        for parents in ([], [PARENT], [OTHER])
    }
    assert len(digests) == 1


def test_trace_of_a_check_call_is_that_of_all_its_transactions() -> None:
    """One call has one trace; and what a producer wrote himself gets into no header line unread."""
    ours, theirs = (find_trace([("traceparent", parent)]) for parent in (PARENT, OTHER))
    assert find_common_trace([ours, ours]) == {"traceparent": PARENT.decode()}
    assert find_common_trace([ours, theirs]) == find_common_trace([ours, ()]) == find_common_trace([]) == {}
    assert find_trace([("traceparent", PARENT + b"\r\nEvil: 1")]) == find_trace([("traceparent", None)]) == ()


def test_trace_is_found_in_headers() -> None:
    """Parent and state, whatever stands between them; a state alone is none, and neither is a null."""
    headers = [("tracestate", b"a=1"), ("x", b"y"), ("traceparent", PARENT)]
    assert find_trace(headers) == (("traceparent", PARENT), ("tracestate", b"a=1"))
    assert find_trace(headers[:2]) == find_trace([("traceparent", None)]) == find_trace([]) == ()


@pytest.mark.parametrize(("flags", "sampled"), [
    (b"01", True), (b"ff", True), (b"0b", True), (b"00", False), (b"02", False), (b"10", False), (b"fe", False),
])  # fmt: skip
def test_trace_has_a_name_and_says_whether_it_is_recorded(flags: bytes, sampled: bool) -> None:
    """The lowest bit of the flags."""
    trace = read_trace([PARENT[:-2] + flags], [b"a=1"])
    assert find_trace_id(trace) == "0af7651916cd43dd8448eb211c80319c"
    assert is_sampled(trace) is sampled


def test_without_a_trace_there_is_no_name_and_nothing_is_recorded() -> None:
    """As for most transactions."""
    assert find_trace_id(()) is None
    assert is_sampled(()) is False
