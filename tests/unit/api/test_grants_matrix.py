"""Every route for every kind of caller, on what is granted to him, on what is another's, on what does not exist.

What must come is said by a table of its own, below; a route that it does not know fails the test.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import pytest

from bridge.core.keyring import RANDOM_BYTES, make_key_text
from bridge.core.topics import OP_TOPIC
from bridge.service.access import AccessConfig
from tests.support.whole_bridge import Reply, WholeBridge

ADMIN = make_key_text(bytes(RANDOM_BYTES))
OWN, FOREIGN, MISSING = "own", "foreign", "missing"
PRODUCER = ["prepare", "decide", "check", "read"]
ROLES: Mapping[str, list[dict[str, Any]]] = {
    "producer": [{"verbs": PRODUCER, "groups": "own", "topics": "own.*"}],
    "prefixed producer": [{"verbs": PRODUCER, "groups": "ow*", "topics": "own.*"}],
    "preparer": [{"verbs": ["prepare"], "groups": "own"}],
    "decider": [{"verbs": ["decide"], "groups": "own"}],
    "checked": [{"verbs": ["check"], "groups": "own"}],
    "reader": [{"verbs": ["read"], "groups": "own"}],
    "operator": [{"verbs": ["read", "operate"], "groups": "own"}],
    "blind operator": [{"verbs": ["operate"], "groups": "own"}],
    "group admin": [{"verbs": ["admin", "read"], "groups": "own"}],
    "producer for all": [{"verbs": PRODUCER}],
    "admin": [{"verbs": [*PRODUCER, "operate", "admin"]}],
    "granted nothing": [],
}
UNPROVEN = ["no key", "unknown key", "revoked key", "expired key", "malformed", "two keys", "basic"]

# verb that a route needs, and for what: an object of a group, a list, all groups, or anybody who is known
ROUTES: Mapping[tuple[str, str], tuple[str | None, str]] = {
    ("POST", "/v1/transactions"): ("prepare", "prepare"),
    ("POST", "/v1/transactions/batch"): ("prepare", "prepares"),
    ("POST", "/v1/messages"): ("prepare", "prepare"),
    ("POST", "/v1/messages/batch"): ("prepare", "prepares"),
    ("GET", "/v1/transactions"): ("read", "list"),
    ("GET", "/v1/transactions/{transaction_id}"): ("read", "transaction"),
    ("GET", "/v1/transactions/{transaction_id}/timeline"): ("read", "transaction"),
    ("POST", "/v1/transactions/{transaction_id}/commit"): ("decide", "transaction"),
    ("POST", "/v1/transactions/{transaction_id}/rollback"): ("decide", "transaction"),
    ("POST", "/v1/resolutions"): (None, "ends"),
    ("POST", "/v1/transactions/{transaction_id}/check"): ("operate", "transaction"),
    ("POST", "/v1/transactions/{transaction_id}/force"): ("operate", "transaction"),
    ("POST", "/v1/transactions/{transaction_id}/resume"): ("operate", "transaction"),
    ("POST", "/v1/transactions/{transaction_id}/abandon"): ("operate", "transaction"),
    ("GET", "/v1/parked"): ("read", "list"),
    ("POST", "/v1/parked/redrive"): ("operate", "group"),
    ("GET", "/v1/parked/redrive"): ("read", "jobs"),
    ("GET", "/v1/parked/redrive/{job_id}"): ("read", "job"),
    ("POST", "/v1/parked/redrive/{job_id}/stop"): ("operate", "job"),
    ("PUT", "/v1/producer-groups/{group}"): ("admin", "group"),
    ("GET", "/v1/producer-groups/{group}"): ("read", "group"),
    ("GET", "/v1/producer-groups"): ("read", "groups"),
    ("DELETE", "/v1/producer-groups/{group}"): ("admin", "group"),
    ("POST", "/v1/producer-groups/{group}/pause"): ("operate", "group"),
    ("POST", "/v1/producer-groups/{group}/resume"): ("operate", "group"),
    ("POST", "/v1/producer-groups/{group}/rotate-secret"): ("admin", "group"),
    ("POST", "/v1/producer-groups/{group}/test"): ("admin", "group"),
    ("POST", "/v1/producer-groups/{group}/endpoints"): ("check", "group"),
    ("DELETE", "/v1/producer-groups/{group}/endpoints"): ("check", "group"),
    ("POST", "/v1/producer-groups/{group}/checks/claim"): ("check", "group"),
    ("POST", "/v1/pause"): ("operate", "all"),
    ("POST", "/v1/resume"): ("operate", "all"),
    ("GET", "/v1/stats"): ("read", "stats"),
    ("GET", "/v1/audit"): ("admin", "all"),
    ("GET", "/v1/principals"): ("admin", "all"),
    ("PUT", "/v1/principals/{principal}"): ("admin", "all"),
    ("DELETE", "/v1/principals/{principal}"): ("admin", "all"),
    ("POST", "/v1/principals/{principal}/keys"): ("admin", "all"),
    ("DELETE", "/v1/keys/{key_id}"): ("admin", "all"),
    ("GET", "/v1/webhooks"): ("read", "all"),
    ("POST", "/v1/webhooks/{webhook}/test"): ("operate", "all"),
    ("POST", "/v1/webhooks/findings"): ("operate", "all"),
    ("GET", "/metrics"): ("read", "all"),
    ("GET", "/livez"): (None, "open"),
    ("GET", "/readyz"): (None, "open"),
    ("HEAD", "/livez"): (None, "open"),
    ("HEAD", "/readyz"): (None, "open"),
    ("GET", "/"): (None, "known"),
    ("GET", "/docs"): (None, "known"),
    ("GET", "/openapi.json"): (None, "known"),
    ("GET", "/v1/nothing"): (None, "nowhere"),
}
BODIES: Mapping[str, dict[str, Any]] = {
    "force": {"resolution": "ROLLBACK", "reason": "why not"},
    "resume": {"reason": "why not"},
    "abandon": {"reason": "why not"},
    "stop": {"reason": "why not"},
    "endpoints": {"url": "https://shop.example/check"},
    "claim": {"wait_seconds": 0},
}
ADMITTED = "let in"


class Caller(NamedTuple):
    """Grants, and headers that prove them; None: nothing does."""

    name: str
    headers: Mapping[str, str]
    grants: list[dict[str, Any]] | None

    def may(self, verb: str, group: str, topic: str | None = None) -> bool:
        """By the plain meaning of the words."""
        return any(
            verb in grant["verbs"]
            and _fits(grant.get("groups", "*"), group)
            and (topic is None or _fits(grant.get("topics", "*"), topic))
            for grant in self.grants or ()
        )

    def may_at_all(self, verb: str) -> bool:
        return any(verb in grant["verbs"] for grant in self.grants or ())

    def may_for_all(self, verb: str) -> bool:
        return any(verb in grant["verbs"] and grant.get("groups", "*") == "*" for grant in self.grants or ())


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class Scene:
    """A bridge with two groups, and callers of every kind."""

    def __init__(self, bridge: WholeBridge) -> None:
        self.bridge = bridge
        self.callers = [*map(self._make_caller, ROLES), *map(self._make_unproven, UNPROVEN)]
        for group in (OWN, FOREIGN):
            self.admin("PUT", f"/v1/producer-groups/{group}", {"check": {"mode": "pull"}})
            self.prepare(group)
        filters = {group: {"producer_group": group} for group in (OWN, FOREIGN)}
        self.jobs = {group: self._begin_job(wanted) for group, wanted in filters.items()} | {MISSING: "r-none"}
        self._names = count()

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """What the admin of the settings does."""
        reply = self.bridge.call(method, path, body, _bearer(ADMIN))
        assert reply.status in {200, 201, 202}, reply
        return reply.document

    def prepare(self, group: str) -> str:
        """A new pending transaction."""
        body = {"producer_group": group, "messages": [{"topic": f"{group}.orders", "value": 1}]}
        return str(self.admin("POST", "/v1/transactions", body)["transaction_id"])

    def call(self, caller: Caller, method: str, route: str, target: str) -> Reply:
        """One cell."""
        verb, scope = ROUTES[method, route]
        path, body = route, BODIES.get(route.rpartition("/")[2])
        group = target if target != MISSING else "missing"
        if "{transaction_id}" in route or scope == "ends":
            # an id of a queue that there is
            transaction_id = "00" + "0" * 26 if target == MISSING else self.prepare(target)
            path = path.replace("{transaction_id}", transaction_id)
            if scope == "ends":
                body = {"resolutions": [{"transaction_id": transaction_id, "resolution": "COMMIT"}]}
                body["resolutions"][0]["producer_group"] = group
            elif verb == "decide":
                body = {"producer_group": group}
        path = path.replace("{group}", group).replace("{job_id}", self.jobs[target])
        path = path.replace("{principal}", f"made-{next(self._names)}").replace("{key_id}", "aaaaaaaa")
        if scope in {"prepare", "prepares"}:
            body = {"producer_group": group, "messages": [{"topic": f"{group}.orders", "value": 1}]}
            body = {"transactions": [body]} if scope == "prepares" else body
        if route == "/v1/parked/redrive" and method == "POST":
            body = {"action": "resume", "filter": {"producer_group": group}, "reason": "why not"}
        if method == "DELETE" and route.endswith("endpoints"):
            path, body = f"{path}?url=https://shop.example/check", None
        if method == "PUT" and body is None:
            body = {}
        if is_switch := route.endswith(("{group}/pause", "{group}/resume")):
            body = {"what": "prepares", "reason": "why not"}
        reply = self.bridge.call(method, path, body if method != "GET" else None, caller.headers)
        if is_switch and target != MISSING:
            self.admin("POST", f"/v1/producer-groups/{group}/resume", {"what": "prepares", "reason": "back"})
        return reply

    def _make_caller(self, role: str) -> Caller:
        name = role.replace(" ", "-")
        self.admin("PUT", f"/v1/principals/{name}", {"grants": ROLES[role]})
        key = self.admin("POST", f"/v1/principals/{name}/keys")["key"]
        return Caller(role, _bearer(key), ROLES[role])

    def _make_unproven(self, kind: str) -> Caller:
        name = kind.replace(" ", "-")
        self.admin("PUT", f"/v1/principals/{name}", {"grants": ROLES["admin"]})
        life = {"expires_in_seconds": 60} if kind == "expired key" else {}
        made = self.admin("POST", f"/v1/principals/{name}/keys", life)
        if kind == "revoked key":
            self.admin("DELETE", f"/v1/keys/{made['key_id']}")
        if kind == "expired key":
            self.bridge.pass_ms(61_000)
        key = made["key"]
        headers = {
            "no key": {},
            "unknown key": _bearer(make_key_text(bytes(range(RANDOM_BYTES)))),
            "malformed": _bearer(f"{key}x"),
            "two keys": {"authorization": f"Bearer {key}", "Authorization": f"Bearer {key}"},
            "basic": {"authorization": f"Basic {key}"},
        }
        return Caller(kind, headers.get(kind, _bearer(key)), None)

    def _begin_job(self, wanted: Mapping[str, str]) -> str:
        body = {"action": "resume", "filter": wanted, "reason": "to be seen"}
        return str(self.admin("POST", "/v1/parked/redrive", body)["job_id"])


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One for all: no cell changes what another one is about."""
    topics = {"own.orders": 1, "foreign.orders": 1, "missing.orders": 1}
    access = AccessConfig(is_open=False, admin_key=ADMIN, refresh_ms=1_000)
    with WholeBridge(tmp_path_factory.mktemp("bridge"), topics, access=access) as bridge:
        yield Scene(bridge)


def _expect(  # noqa: PLR0911 - a table
    caller: Caller, method: str, route: str, target: str
) -> int | str:
    """What comes: 401, 403, 404, or something that only who is let in gets."""
    verb, scope = ROUTES[method, route]
    group = target if target != MISSING else "missing"
    if scope == "open":
        return ADMITTED
    if caller.grants is None:
        return 401
    if scope == "nowhere":
        return 404
    if scope == "ends" or verb is None:
        return ADMITTED
    if not (caller.may_for_all(verb) if scope == "all" else caller.may_at_all(verb)):
        return 403
    if scope == "prepare":
        return ADMITTED if caller.may(verb, group, f"{group}.orders") else 403
    if scope in {"transaction", "group", "job"} and not caller.may(verb, group):
        is_known = any(caller.may(other, group) for other in ([*PRODUCER, "operate", "admin"]))
        is_read = caller.may("read", group)
        return 403 if (is_known if scope == "group" else is_read) and verb != "read" and target != MISSING else 404
    if verb == "operate" and scope == "job" and not caller.may("read", group):
        return 404
    return 404 if target == MISSING and scope in {"transaction", "job"} else ADMITTED


@pytest.mark.parametrize(("method", "route"), sorted(ROUTES))
def test_cell_is_as_declared(scene: Scene, method: str, route: str) -> None:
    """All callers on all three kinds of objects: no more, no less than was granted to them."""
    wrong = []
    for caller in scene.callers:
        for target in (OWN, FOREIGN, MISSING):
            expected, reply = _expect(caller, method, route, target), scene.call(caller, method, route, target)
            is_shut = reply.status in {401, 403} or (reply.status == 404 and ROUTES[method, route][1] != "all")
            found = reply.status if is_shut else ADMITTED
            may_be_missing = expected == ADMITTED and target == MISSING and "{group}" in route
            if found != expected and not (may_be_missing and found == 404):
                wrong.append((caller.name, target, f"expected {expected}, was {reply.status}", reply.body[:300]))
    assert not wrong, wrong


def test_table_knows_every_route(scene: Scene) -> None:
    """A new one says here what it needs."""
    key = _bearer(ADMIN)
    document = scene.bridge.call("GET", "/openapi.json", None, key).document
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described <= ROUTES.keys()


def _caller(scene: Scene, name: str) -> Caller:
    return next(caller for caller in scene.callers if caller.name == name)


@pytest.mark.parametrize("name", ["producer", "prefixed producer", "reader", "operator"])
def test_lists_and_counts_hold_what_may_be_read(scene: Scene, name: str) -> None:
    """Filtered in the query: nothing of other groups, and pages that are full."""
    caller = _caller(scene, name)
    for _ in range(3):
        scene.prepare(OWN)
        scene.prepare(FOREIGN)
    scene.bridge.pass_ms(200)

    def read(path: str) -> Any:
        reply = scene.bridge.call("GET", path, None, caller.headers)
        assert reply.status == 200, reply
        return reply.document

    for path in ("/v1/transactions?limit=2", "/v1/transactions?limit=2&topic=own.orders"):
        page = read(path)
        assert [one["producer_group"] for one in page["transactions"]] == [OWN] * 2
        assert page["next"] is not None
    assert read("/v1/transactions?topic=foreign.orders")["transactions"] == []
    assert read(f"/v1/transactions?producer_group={FOREIGN}")["transactions"] == []
    assert [group["name"] for group in read("/v1/producer-groups")["producer_groups"]] == [OWN]
    stats = read("/v1/stats")
    assert list(stats["groups"]) == [OWN]
    assert stats["pending"] == stats["groups"][OWN]["pending"] > 0
    assert [job["filter"]["producer_group"] for job in read("/v1/parked/redrive")["jobs"]] != []
    assert {job["filter"]["producer_group"] for job in read("/v1/parked/redrive")["jobs"]} == {OWN}


@pytest.mark.parametrize("name", ["producer", "decider", "producer for all"])
def test_ends_of_others_are_ends_of_nothing(scene: Scene, name: str) -> None:
    """Whichever group they are said to be of; and one's own need no group where there is only one."""
    caller, may_all = _caller(scene, name), name == "producer for all"
    for group in (OWN, FOREIGN, None):
        for target in (OWN, FOREIGN):
            named = {} if group is None else {"producer_group": group}
            transaction_id, path = scene.prepare(target), "/v1/transactions"
            reply = scene.bridge.call("POST", f"{path}/{transaction_id}/rollback", named, caller.headers)
            is_right = group in {None, target}
            expected = (200 if is_right else 409) if may_all else (200 if is_right and target == OWN else 404)
            assert reply.status == expected, (group, target, reply)
            item = {"transaction_id": scene.prepare(target), "resolution": "ROLLBACK", **named}
            reply = scene.bridge.call("POST", "/v1/resolutions", {"resolutions": [item]}, caller.headers)
            assert reply.document["results"][0]["status"] == expected
            state = scene.admin("GET", f"{path}/{item['transaction_id']}")["state"]
            assert state == ("ROLLED_BACK" if expected == 200 else "PREPARED")


def test_who_may_decide_for_several_groups_says_for_which(scene: Scene) -> None:
    """Nothing is guessed."""
    caller = _caller(scene, "prefixed producer")
    reply = scene.bridge.call("POST", f"/v1/transactions/{scene.prepare(OWN)}/commit", None, caller.headers)
    assert reply.status == 422
    assert reply.document["errors"][0]["pointer"] == "/producer_group"


def test_topics_are_granted_too(scene: Scene) -> None:
    """Message by message; nothing is said of topics that are not granted, not even whether they exist."""
    caller = _caller(scene, "producer")
    for topic in ("foreign.orders", "nowhere", OP_TOPIC):
        messages = [{"topic": "own.orders", "value": 1}, {"topic": topic, "value": 1}]
        body = {"producer_group": OWN, "messages": messages}
        reply = scene.bridge.call("POST", "/v1/transactions", body, caller.headers)
        assert reply.status == 403
        assert topic in reply.document["detail"]
        reply = scene.bridge.call("POST", "/v1/transactions/batch", {"transactions": [body]}, caller.headers)
        assert reply.document["results"][0]["status"] == 403


def test_refusals_say_how_to_prove_it_and_acts_who_did_it(scene: Scene) -> None:
    """As HTTP asks for; the audit has name, key and address."""
    caller = _caller(scene, "operator")
    reply = scene.bridge.call("GET", "/v1/stats")
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert reply.document["type"].endswith("/unauthenticated")
    body = {"resolution": "ROLLBACK", "reason": "by phone"}
    path = f"/v1/transactions/{scene.prepare(OWN)}/force"
    assert scene.bridge.call("POST", path, body, caller.headers).status == 200
    key_id = caller.headers["authorization"].split("_")[1]
    entries = scene.admin("GET", "/v1/audit?limit=5")["entries"]
    assert {entry["actor"] for entry in entries if entry["reason"] == "by phone"} == {f"operator/{key_id}@127.0.0.1"}


def test_bodies_of_parked_messages_are_for_admins_and_audited(scene: Scene) -> None:
    """What others have prepared and nobody has decided is not for everybody who may read the group."""
    reader, admin = _caller(scene, "reader"), _caller(scene, "group admin")
    body = {"producer_group": OWN, "messages": [{"topic": "own.orders", "value": "canary"}], "max_lifetime_seconds": 1}
    transaction_id = scene.admin("POST", "/v1/transactions", body)["transaction_id"]
    path = f"/v1/transactions/{transaction_id}?include=messages"
    assert "canary" in scene.bridge.call("GET", path, None, reader.headers).body.decode()
    scene.bridge.pass_ms(61_000)
    assert scene.admin("GET", f"/v1/transactions/{transaction_id}")["state"] == "PARKED"
    assert scene.bridge.call("GET", path, None, reader.headers).status == 403
    assert "canary" in scene.bridge.call("GET", path, None, admin.headers).body.decode()
    entries = scene.admin("GET", "/v1/audit?limit=5")["entries"]
    assert ("transaction.read-messages", transaction_id) in {(entry["action"], entry["target"]) for entry in entries}
