"""Who reads the pages of a bridge that asks for keys."""

import re
from collections.abc import Iterator
from typing import cast

import pytest

from bridge.clock import SystemClock
from bridge.core.keyring import RANDOM_BYTES, SECRET_BYTES, BridgeKey, Keyring, make_key_text
from bridge.service.access import LIFE_S, AccessConfig, AccessService, Sessions
from bridge.sql.engine import Database
from tests.support.whole_bridge import WholeBridge

ADMIN = make_key_text(bytes(RANDOM_BYTES))
PROOF = {"authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBridge]:
    """A bridge that lets in whoever has a key."""
    access = AccessConfig(is_open=False, admin_key=ADMIN)
    with WholeBridge(tmp_path_factory.mktemp("bridge"), {"orders": 1}, access=access) as bridge:
        yield bridge


def make_key(bridge: WholeBridge, name: str, *grants: dict[str, object]) -> str:
    bridge.call("PUT", f"/v1/principals/{name}", {"grants": list(grants)}, PROOF)
    return str(bridge.call("POST", f"/v1/principals/{name}/keys", {}, PROOF).document["key"])


def sign_in(bridge: WholeBridge, key: str) -> dict[str, str]:
    reply = bridge.submit("/console/sign-in", {"key": key})
    assert reply.status == 303, reply.body
    return {"cookie": reply.headers["set-cookie"].partition(";")[0]}


def prepare(bridge: WholeBridge, group: str) -> str:
    body = {"producer_group": group, "messages": [{"topic": "orders", "value": group}]}
    return str(bridge.call("POST", "/v1/transactions", body, PROOF).document["transaction_id"])


def test_unknown_reader_is_led_to_where_he_signs_in(keyed: WholeBridge) -> None:
    """And back, but to no other site."""
    reply = keyed.call("GET", "/console/search?state=PARKED")
    assert (reply.status, reply.headers["location"]) == (303, "./sign-in?next=search%3Fstate%3DPARKED")
    form = {"key": ADMIN, "next": "search?state=PARKED"}
    assert keyed.submit("/console/sign-in", form).headers["location"] == "./search?state=PARKED"
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil", "javascript:alert(1)"):
        assert keyed.submit("/console/sign-in", {**form, "next": elsewhere}).headers["location"] == "./"
    assert keyed.call("POST", "/console/sign-out").status == 401
    assert keyed.call("GET", "/console/assets/console.css").status == 200


def test_session_is_no_key_and_out_of_reach_of_scripts_and_other_sites(keyed: WholeBridge) -> None:
    """Whoever reads the browser's cookies has eight hours, and never the key."""
    kept = keyed.submit("/console/sign-in", {"key": ADMIN}).headers["set-cookie"]
    assert kept.split("; ")[1:] == [f"Max-Age={LIFE_S}", "HttpOnly", "SameSite=Strict"]
    assert ADMIN.rpartition("_")[2] not in kept
    secured = keyed.submit("/console/sign-in", {"key": ADMIN}, {"origin": "https://localhost"})
    assert secured.headers["set-cookie"].endswith("; Secure")


def test_session_is_good_for_pages_alone(keyed: WholeBridge) -> None:
    """The interface takes no cookie, so that no page of anybody can use it."""
    session = sign_in(keyed, ADMIN)
    assert keyed.call("GET", "/console/", headers=session).status == 200
    assert keyed.call("GET", "/v1/stats", headers=session).status == 401


def test_wrong_keys_and_forged_sessions_are_refused(keyed: WholeBridge) -> None:
    """Each part of a session counts."""
    assert keyed.submit("/console/sign-in", {"key": ADMIN[:-1] + "x"}).status == 401
    assert keyed.submit("/console/sign-in", {"key": ""}).status == 401
    name, _, session = sign_in(keyed, ADMIN)["cookie"].partition("=")
    key_id, until, signer, mac = session.split(".")
    forged = [
        f"{key_id}.{int(until) + 1}.{signer}.{mac}", f"{key_id}.{until}.{signer}.{mac[:-1]}",
        f"{key_id}.{until}..{mac}",
        f"x{key_id[1:]}.{until}.{signer}.{mac}", "", "...", f"{key_id}.-1.{signer}.{mac}", f"{key_id}.{until}",
    ]  # fmt: skip
    for text in forged:
        assert keyed.call("GET", "/console/", headers={"cookie": f"{name}={text}"}).status == 303, text


def test_session_ends_with_its_time_and_with_its_key(keyed: WholeBridge) -> None:
    """Revoking the key is enough."""
    key = make_key(keyed, "anna", {"verbs": ["read"]})
    session = sign_in(keyed, key)
    assert keyed.call("GET", "/console/", headers=session).status == 200
    keyed.call("DELETE", f"/v1/keys/{key.split('_')[1]}", headers=PROOF)
    assert keyed.call("GET", "/console/", headers=session).status == 303
    now_ms = 7_000
    access = AccessService(cast("Database", None), SystemClock(), AccessConfig(is_open=False, admin_key=ADMIN))
    sessions = Sessions(access, Keyring([BridgeKey("1", bytes(SECRET_BYTES))]), lambda: now_ms)
    begun = sessions.begin(ADMIN)
    assert begun is not None
    now_ms += LIFE_S * 1000 - 1
    assert sessions.find(begun) is not None
    now_ms += 1
    assert sessions.find(begun) is None


def test_pages_show_what_was_granted_and_let_nobody_do_more(keyed: WholeBridge) -> None:
    """Others' transactions do not exist, and acts that would be refused are not offered."""
    own, foreign = prepare(keyed, "own"), prepare(keyed, "foreign")
    keyed.pass_ms(3_000)
    reader = sign_in(keyed, make_key(keyed, "reader", {"verbs": ["read"], "groups": "own"}))
    operator = sign_in(keyed, make_key(keyed, "operator", {"verbs": ["read", "operate"], "groups": "own"}))
    for session in (reader, operator):
        assert "foreign" not in keyed.call("GET", "/console/", headers=session).body.decode()
        assert re.findall(
            r"transactions/(\w{28})", keyed.call("GET", "/console/search", headers=session).body.decode()
        ) == [own]
        for below in ("", "/messages/0"):
            assert keyed.call("GET", f"/console/transactions/{foreign}{below}", headers=session).status == 404
        assert keyed.submit(f"/console/transactions/{foreign}/commit", {"reason": "x"}, session).status in {403, 404}
    page = f"/console/transactions/{own}"
    assert "formaction" not in keyed.call("GET", page, headers=reader).body.decode()
    assert "formaction" in keyed.call("GET", page, headers=operator).body.decode()
    assert keyed.submit(f"{page}/commit", {"reason": "x"}, reader).status == 403
    assert keyed.submit(f"{page}/commit", {"reason": "x"}, operator).status == 303
    nobody = sign_in(keyed, make_key(keyed, "nobody"))
    assert keyed.call("GET", "/console/", headers=nobody).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost", "host": "evil.example"},
    ],
)
def test_forms_of_other_sites_are_refused(keyed: WholeBridge, headers: dict[str, str]) -> None:
    """Even of another port on this machine, for which a browser would send the session."""
    session = sign_in(keyed, ADMIN)
    transaction_id = prepare(keyed, "own")
    reply = keyed.submit(f"/console/transactions/{transaction_id}/commit", {"reason": "x"}, {**session, **headers})
    assert reply.status == 403
    assert keyed.call("GET", f"/v1/transactions/{transaction_id}", headers=PROOF).document["state"] == "PREPARED"


def test_form_that_does_not_say_where_it_comes_from_is_refused(keyed: WholeBridge) -> None:
    """And the interface takes no forms at all."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert keyed.call("POST", "/console/sign-in", {}, form).status == 415
    assert keyed.submit("/v1/transactions", {"a": "b"}, PROOF).status == 415


def test_address_from_another_site_leads_to_itself_first(keyed: WholeBridge) -> None:
    """Browsers keep the session back on the way from there."""
    reply = keyed.call("GET", "/console/search?state=PARKED", headers={"sec-fetch-site": "cross-site"})
    assert reply.status == 200
    assert 'content="0; url=./search?state=PARKED"' in reply.body.decode()


def test_examination_calls_the_groups_that_the_reader_may_test(keyed: WholeBridge) -> None:
    """He sees no other group, and of those that he may read alone what their last checks came to."""
    for group in ("own", "read", "foreign"):
        keyed.call("PUT", f"/v1/producer-groups/{group}", {"endpoints": [{"url": f"https://{group}/"}]}, PROOF)
        prepare(keyed, group)
    grants = ({"verbs": ["read", "admin"], "groups": "own"}, {"verbs": ["read"], "groups": "read"})
    page = keyed.submit("/console/settings", {}, sign_in(keyed, make_key(keyed, "shopkeeper", *grants)))
    text = page.body.decode()
    assert (page.status, "https://own/: no answer: refused" in text, "1 of 2 were not called" in text) == (200, 1, 1)
    assert ("https://read" in text, "foreign" in text) == (False, False)
    assert keyed.submit("/console/settings", {}, {"origin": "https://evil.example"}).status in {401, 403}
