"""An endpoint proves whose it is: it reads a signed call, and sends back what only that call told it."""

import json
import time
from itertools import count

import pytest

from bridge.core.check_rules import GroupSettings
from bridge.directory import ProducerGroup
from checker.call import EndpointCall
from checker.endpoint_trial import OwnershipProof
from outbox.check_handler import CheckHandler
from outbox.client.checks import Check, Tell
from tests.support.check_fakes import MemoryCaller, Response
from tests.support.virtual_time import VirtualClock

URL = "https://shop.example/check"
SECRET, OTHER = "whsec_" + "c2VjcmV0" * 4, "whsec_" + "b3RoZXIh" * 4
SHOP = ProducerGroup("shop", GroupSettings(), secrets=(SECRET,))


class WallClock(VirtualClock):
    """Signatures are dated by it, and verified by the machine's own."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def make_proof(caller: MemoryCaller) -> OwnershipProof:
    return OwnershipProof(caller, WallClock(), lambda: "a-text-that-nobody-guesses")


async def find_flaw(answer: Response, group: ProducerGroup = SHOP) -> str | None:
    async def respond(call: EndpointCall) -> Response:
        return answer

    return await make_proof(MemoryCaller(VirtualClock(), {URL: respond})).find_flaw(group, URL)


@pytest.mark.parametrize(("secret", "flaw"), [(SECRET, None), (OTHER, "did not answer the challenge: status 401")])
async def test_handler_of_the_sdk_answers_if_it_has_the_secret(secret: str, flaw: str | None) -> None:
    """Without asking the service's own code about anything."""

    def never(checks: list[Check], tell: Tell) -> None:
        raise AssertionError("asked")

    handler = CheckHandler([secret], never, producer_groups=["shop"])

    async def respond(call: EndpointCall) -> Response:
        reply = handler.respond("POST", {name.lower(): value for name, value in call.headers.items()}, call.body)
        return Response(reply.status, reply.body)

    found = await make_proof(MemoryCaller(VirtualClock(), {URL: respond})).find_flaw(SHOP, URL)
    handler.close()
    assert found is None if flaw is None else found is not None and flaw in found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"ok",
        b"[]",
        b'{"resolutions":[]}',
        b'{"challenge":"a-text-that-nobody-guesses"}',
        b'{"resolutions":[],"challenge":"another"}',
        b'{"resolutions":[],"challenge":"a-text-that-nobody-guesses","more":1}',
        b'{"resolutions":[{}],"challenge":"a-text-that-nobody-guesses"}',
        b'{"resolutions":[],"challenge":"another","challenge":"a-text-that-nobody-guesses"}',
        b'{"resolutions":[],"challenge":""}',
        b'{"resolutions":[],"challenge":"a-text"}',
        b'{"resolutions":[],"challenge":"a-text-that-nobody-guesses "}',
        b'{"resolutions":[],"challenge":"A-TEXT-THAT-NOBODY-GUESSES"}',
        b'{"resolutions":[],"challenge":null}',
        b'{"resolutions":[],"challenge":["a-text-that-nobody-guesses"]}',
        b'{"resolutions":null,"challenge":"a-text-that-nobody-guesses"}',
        b"[" * 2_000,
    ],
)
async def test_other_answers_prove_nothing(body: bytes) -> None:
    """Also one that any server could give that knows no secret."""
    assert await find_flaw(Response(200, body)) == "the endpoint did not send the challenge back"


async def test_server_that_sends_back_all_it_gets_proves_nothing() -> None:
    """There are such servers, and they know no secret."""

    async def respond(call: EndpointCall) -> Response:
        return Response(200, call.body)

    proof = make_proof(MemoryCaller(VirtualClock(), {URL: respond}))
    assert await proof.find_flaw(SHOP, URL) == "the endpoint did not send the challenge back"


async def test_what_was_right_once_is_not_right_again() -> None:
    """Each time another text is wanted back, and none of them is to be read in the headers of its call."""
    texts, seen = (f"text-{number}" for number in count()), []

    async def respond(call: EndpointCall) -> Response:
        seen.append(json.loads(call.body)["challenge"])
        assert seen[-1] not in call.headers.values()
        return Response(200, json.dumps({"resolutions": [], "challenge": seen[0]}).encode())

    caller = MemoryCaller(VirtualClock(), {URL: respond})
    proof = OwnershipProof(caller, WallClock(), lambda: next(texts))
    assert await proof.find_flaw(SHOP, URL) is None
    assert await proof.find_flaw(SHOP, URL) == "the endpoint did not send the challenge back"
    assert len(set(seen)) == 2


async def test_servers_that_do_not_answer_are_told_apart() -> None:
    """And nothing goes out unsigned."""
    right = json.dumps({"resolutions": [], "challenge": "a-text-that-nobody-guesses"}).encode()
    assert await find_flaw(Response(200, right)) is None
    assert await find_flaw(Response(200, right + b" " * 5_000)) is not None
    for status, word in ((404, "status 404"), (302, "redirect 302"), (429, "rate-limited 429")):
        assert await find_flaw(Response(status, right)) == f"the endpoint did not answer the challenge: {word}"
    nobody = await make_proof(MemoryCaller(VirtualClock())).find_flaw(SHOP, URL)
    assert nobody == "the endpoint did not answer the challenge: refused"
    unsigned = ProducerGroup("shop", GroupSettings())
    assert await find_flaw(Response(200, right), unsigned) == "the group has no secret that calls can be signed with"
