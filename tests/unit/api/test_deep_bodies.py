"""Values nested as deep as a sender likes: the same refusal everywhere, whichever reader meets them first."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.web.parse import parse_end, parse_prepare, parse_prepare_batch, parse_resolution, parse_resolutions
from api.web.problems import Problem, Rejected
from bridge.core.record import Resolution
from bridge.service.contract import PrepareCall
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import NDJSON, UNKNOWN_ID
from tests.support.live_server import serve

MAX_HEADERS = 64
DEPTHS = st.integers(33, 2_000) | st.sampled_from([10_000, 100_000])
BRACKETS = st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b"[ ", b" ]"), (b"[0,", b"]")])
READERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "prepare": (
        lambda raw: parse_prepare(raw, MAX_HEADERS),
        b'{"producer_group":"g","messages":[{"topic":"t","value":%b}]}',
    ),
    "publish": (
        lambda raw: parse_prepare(raw, MAX_HEADERS, is_published=True),
        b'{"messages":[{"value":%b,"topic":"t"}],"producer_group":"g"}',
    ),
    "batch": (
        lambda raw: parse_prepare_batch(raw, MAX_HEADERS),
        b'{"transactions":[{"producer_group":"g","messages":[{"topic":"t","value":%b}]}]}',
    ),
    "resolution": (parse_resolution, b'{"transaction_id":"x","resolution":"COMMIT","more":%b}'),
    "resolutions": (parse_resolutions, b'{"resolutions":[%b]}'),
    "end": (lambda raw: parse_end(raw, UNKNOWN_ID, Resolution.COMMIT), b'{"more":%b}'),
}


def nest(depth: int, brackets: tuple[bytes, bytes], core: bytes = b"1") -> bytes:
    """A value so deep."""
    return brackets[0] * depth + core + brackets[1] * depth


@pytest.mark.parametrize("name", READERS)
@given(depth=DEPTHS, brackets=BRACKETS, escape=st.sampled_from([b"1", b'"\\u0041"', b'"["']))
@example(depth=1_000, brackets=(b"[", b"]"), escape=b"1")
def test_deep_value_is_malformed_json(name: str, depth: int, brackets: tuple[bytes, bytes], escape: bytes) -> None:
    """A parser's own recursion limit is no surprise to anybody."""
    read, body = READERS[name]
    with pytest.raises(Rejected) as refused:
        read(body.replace(b"%b", nest(depth, brackets, escape)))
    assert refused.value.problem.type.slug == "malformed-json"


@given(depth=st.integers(0, 29))
def test_value_as_deep_as_is_allowed_is_taken(depth: int) -> None:
    """Three levels are around it."""
    read, body = READERS["prepare"]
    call = read(body.replace(b"%b", nest(depth, (b"[", b"]"))))
    assert isinstance(call, PrepareCall)
    assert call.messages[0].value == nest(depth, (b"[", b"]"))


@pytest.mark.parametrize("depth", [33, 1_000, 100_000])
async def test_deep_line_is_refused_and_the_others_are_not(depth: int) -> None:
    """A stream of NDJSON goes on behind it."""
    good = READERS["prepare"][1].replace(b"%b", b"1")
    deep = READERS["prepare"][1].replace(b"%b", nest(depth, (b"[", b"]")))
    async with serve(make_services(FakeTransactions())) as live:
        for path in ("/v1/transactions/batch", "/v1/messages/batch"):
            answer = await live.client.post(path, content=b"\n".join([good, deep, good]), headers=NDJSON)
            statuses = [line[:13] for line in answer.text.splitlines()]
            assert statuses[1] == '{"status":400'
            assert statuses[0] == statuses[2] != statuses[1]


def test_no_item_of_a_batch_is_read_when_one_is_too_deep() -> None:
    """The document as a whole is not strict JSON."""
    good = b'{"producer_group":"g","messages":[{"topic":"t"}]}'
    deep = READERS["prepare"][1].replace(b"%b", nest(1_000, (b"[", b"]")))
    with pytest.raises(Rejected):
        parse_prepare_batch(b'{"transactions":[%b,%b]}' % (good, deep), MAX_HEADERS)
    (only,) = parse_prepare_batch(b'{"transactions":[%b]}' % good, MAX_HEADERS)
    assert not isinstance(only, Problem)
