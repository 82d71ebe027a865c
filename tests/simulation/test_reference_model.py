"""The whole bridge against the reference model: Hypothesis calls the HTTP interface as it likes, time passes, and every
answer, every check and every visible record must be one that the model allows.

The same examples are run each time, so a failure comes back; it prints the calls that led to it, to be pasted into a
test as they are. `REFERENCE_EXAMPLES=5000` runs so many others instead, drawn anew each time.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from bridge.core.message import StoredMessage
from checker.call import EndpointCall
from tests.support import reference_model as model
from tests.support.check_fakes import Response
from tests.support.reference_model import (
    Answer,
    Body,
    Branch,
    Content,
    Terms,
    Transaction,
    agree,
    answer_of,
    read_message,
)
from tests.support.whole_bridge import Reply, WholeBridge

EXAMPLES, STEPS = 80, 40
TOPICS = {"orders": 2, "credits": 1}
DOOMED = "doomed"  # a topic that goes
CALL_TIMEOUT_MS = 500
BUSY_MS = 5
CATCH_UP_MS = 1_100  # counts may be a second old

# endpoints of a group and its check settings; nobody makes "stray", so it has the defaults and no endpoint
ENDPOINTS = {"shop": ("https://a.shop/", "https://b.shop/"), "bank": ("https://bank/",), "depot": ()}
CHECK = {"transaction_timeout_seconds": 1, "interval_seconds": 2, "max_checks": 2, "max_lifetime_seconds": 12}
TERMS = {name: Terms(1_000, 2_000, 2, 12_000, bool(urls)) for name, urls in ENDPOINTS.items()} | {"stray": Terms()}
GROUPS = st.sampled_from(["shop", "shop", "bank", "bank", "depot", "stray"])

MESSAGES = st.fixed_dictionaries(
    {"topic": st.sampled_from([*TOPICS])},
    optional={
        "key": st.sampled_from([None, "a", "b", ""]),
        "value": st.sampled_from([None, "", "v", "w", {"n": 1}]),
        "headers": st.sampled_from([[], [["h", "1"], ["h", None]]]),
        "partition": st.sampled_from([None, 0]),
    },
)
UNFIT = {  # what could never be published, and its answer
    "nowhere": Answer(422, "unknown-topic"),
    "RMQ_SYS_TRANS_HALF_TOPIC": Answer(403, "reserved-topic"),
    "no name": Answer(422, "illegal-topic"),
    "credits": Answer(422, "unknown-partition"),
}
PREPARES = st.fixed_dictionaries(
    {"producer_group": GROUPS, "messages": st.lists(MESSAGES, min_size=1, max_size=3)},
    optional={
        "ordering_key": st.sampled_from(["a", "line"]),
        "check_immunity_seconds": st.sampled_from([0, 3]),
        "max_checks": st.just(1),
        "max_lifetime_seconds": st.just(5),
    },
)
KEYED = st.fixed_dictionaries(
    {
        "producer_group": st.sampled_from(["shop", "depot"]),
        "idempotency_key": st.sampled_from(["one", "two"]),
        "messages": st.sampled_from([[{"topic": "credits"}], [{"topic": "credits", "value": ""}]]),
    },
    optional={"ordering_key": st.just("a"), "check_immunity_seconds": st.just(3)},
)
WHOSE = st.sampled_from(["nobody's", "nobody's", "its own", "another"])
WORDS = st.sampled_from(["COMMIT", "ROLLBACK", "UNKNOWN"])
NUMBERS = {"COMMIT": 8, "ROLLBACK": 12, "UNKNOWN": 0}
MOODS = st.sampled_from(["answers", "hangs", "refuses", "fails", "wrong nonce", "leaves out"])
STRANGERS = ["00" + "0" * 26, "01" + "v" * 25 + "s", "vv" + "0" * 26]  # well formed; nobody has prepared them


class BridgeMachine(RuleBasedStateMachine):
    """What producers, endpoints and operators may do."""

    ids = Bundle("ids")
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Transaction] = {}
        self.keyed: dict[tuple[str, str], str] = {}
        self.receipts: dict[str, list[Any]] = {}
        self.nonces: dict[str, list[str]] = {}  # of the checks seen, by transaction
        self.words: dict[str, str] = {}  # what endpoints say of a transaction; else UNKNOWN
        self.moods = dict.fromkeys([url for urls in ENDPOINTS.values() for url in urls], "answers")
        self.wrong: list[str] = []
        self.rank = 0
        self.is_calling = False
        self.bridge = WholeBridge(self.folder, TOPICS)
        for url in self.moods:
            self.bridge.endpoints[url] = self.endpoint(url)
        self.bridge.__enter__()

    def teardown(self) -> None:
        try:
            for id_ in self.known:
                self.get(id_)
            self.look_at_topics()
        finally:
            self.bridge.__exit__()

    @initialize(target=ids, bodies=st.lists(PREPARES, min_size=3, max_size=3))
    def begin(self, bodies: list[dict[str, Any]]) -> Any:
        """Groups, and the first transactions."""
        for name, urls in ENDPOINTS.items():
            check = {**CHECK, "call_timeout_seconds": CALL_TIMEOUT_MS / 1000}
            reply = self.call(
                "PUT", f"/v1/producer-groups/{name}", {"endpoints": [{"url": u} for u in urls], "check": check}
            )
            assert reply.status == 201
        return self.prepare_batch(bodies, is_published=False)

    # --- producers ---

    @rule(target=ids, body=PREPARES | KEYED, is_published=st.sampled_from([False, False, False, True]))
    def prepare(self, body: dict[str, Any], is_published: bool) -> Any:
        path = "/v1/messages" if is_published else "/v1/transactions"
        reply = self.call("POST", path, body)
        id_ = self.hear_prepare(body, is_published, reply.status, reply.document)
        return multiple() if id_ is None else id_

    def prepare_alone(self, body: dict[str, Any]) -> str:
        reply = self.call("POST", "/v1/transactions", body)
        id_ = self.hear_prepare(body, False, reply.status, reply.document)
        assert id_ is not None
        return id_

    @rule(body=PREPARES, topic=st.sampled_from([*UNFIT]), place=st.integers(0, 3))
    def prepare_unfit(self, body: dict[str, Any], topic: str, place: int) -> None:
        """One message that could never be published is enough: nothing happens."""
        messages = [*body["messages"][:place], {"topic": topic, "partition": 9}, *body["messages"][place:]]
        reply = self.call("POST", "/v1/transactions", {**body, "messages": messages})
        assert answer_of(reply.status, reply.document) == UNFIT[topic]

    @rule(target=ids, bodies=st.lists(PREPARES | KEYED, min_size=1, max_size=3), is_published=st.booleans())
    def prepare_batch(self, bodies: list[dict[str, Any]], is_published: bool) -> Any:
        path = "/v1/messages/batch" if is_published else "/v1/transactions/batch"
        reply = self.call("POST", path, {"transactions": bodies})
        assert reply.status == 200
        results = reply.document["results"]
        assert len(results) == len(bodies)
        heard = [
            self.hear_prepare(body, is_published, result["status"], result.get("problem", result))
            for body, result in zip(bodies, results, strict=True)
        ]
        return multiple(*[id_ for id_ in heard if id_ is not None])

    @rule(id_=ids, word=st.sampled_from(["commit", "rollback"]), whose=WHOSE)
    def end(self, id_: str, word: str, whose: str) -> None:
        group = self.group_of(id_, whose)
        body = None if group is None else {"producer_group": group}
        reply = self.call("POST", f"/v1/transactions/{id_}/{word}", body)
        branches = model.end(self.known[id_], word.upper(), self.now_ms, self.next_rank(), group=group)
        self.follow(id_, branches, reply.status, reply.document)

    @rule(id_=ids, word=st.sampled_from(["commit", "rollback"]))
    def end_without_waiting(self, id_: str, word: str) -> None:
        """It is durable: the state comes by itself."""
        reply = self.call("POST", f"/v1/transactions/{id_}/{word}", headers={"Prefer": "respond-async"})
        assert (reply.status, reply.document) == (202, {"transaction_id": id_, "resolution": word.upper()})
        branches = model.end(self.known[id_], word.upper(), self.now_ms, self.next_rank())
        self.known[id_] = branches[0].after  # whether it was parked before does not matter any more

    @rule(
        items=st.lists(
            st.tuples(ids, WORDS, st.booleans(), WHOSE, st.integers(0, 3)),
            min_size=1, max_size=4,
        )
    )  # fmt: skip
    def resolve(self, items: Sequence[tuple[str, str, bool, str, int]]) -> None:
        """Ends, and late answers to checks, in one call; `place`: of the check that is answered, 0 for none.

        UNKNOWN last: before an end of the same call it may hear either state.
        """
        items = sorted(items, key=lambda item: item[1] == "UNKNOWN")
        resolutions: list[dict[str, Any]] = []
        for id_, word, is_number, whose, place in items:
            nonces = self.nonces.get(id_, [])[:place][-1:]
            members = {"producer_group": self.group_of(id_, whose), "nonce": nonces[0] if nonces else None}
            resolution = NUMBERS[word] if is_number else word
            given = {name: value for name, value in members.items() if value is not None}
            resolutions.append({"transaction_id": id_, "resolution": resolution, **given})
        reply = self.call("POST", "/v1/resolutions", {"resolutions": resolutions})
        assert reply.status == 200
        results = reply.document["results"]
        for (id_, word, _, _, _), sent, result in zip(items, resolutions, results, strict=True):
            number = int(sent["nonce"].partition("-")[0]) if "nonce" in sent else None
            group, known = sent.get("producer_group"), self.known[id_]
            branches = model.end(known, word, self.now_ms, self.next_rank(), group=group, number=number)
            self.follow(id_, branches, result["status"], result.get("problem", result))

    @rule(
        id_=st.sampled_from(STRANGERS),
        act=st.sampled_from(["commit", "rollback", "force", "resume", "abandon", "check", ""]),
    )
    def call_about_nobody(self, id_: str, act: str) -> None:
        bodies = {
            "force": {"resolution": "COMMIT", "reason": "r"},
            "resume": {"reason": "r"},
            "abandon": {"reason": "r"},
        }
        reply = self.call("POST" if act else "GET", f"/v1/transactions/{id_}/{act}".rstrip("/"), bodies.get(act))
        assert answer_of(reply.status, reply.document) == model.MISSING

    # --- endpoints ---

    @rule(id_=ids, word=WORDS)
    def decide(self, id_: str, word: str) -> None:
        self.words[id_] = word

    @rule(url=st.sampled_from([url for urls in ENDPOINTS.values() for url in urls]), mood=MOODS)
    def change(self, url: str, mood: str) -> None:
        self.moods[url] = mood

    @rule(ms=st.sampled_from([1, 50, 500, 1_000, 2_000]))
    def pass_ms(self, ms: int) -> None:
        self.bridge.pass_ms(ms)

    @rule(ms=st.sampled_from([3_000, 5_000, 16_000]))
    def pass_long(self, ms: int) -> None:
        self.bridge.pass_ms(ms)

    # --- operators ---

    @rule(id_=ids, word=st.sampled_from(["COMMIT", "ROLLBACK"]))
    def force(self, id_: str, word: str) -> None:
        reply = self.call("POST", f"/v1/transactions/{id_}/force", {"resolution": word, "reason": "told so"})
        branches = model.end(self.known[id_], word, self.now_ms, self.next_rank(), by="operator")
        self.follow(id_, branches, reply.status, reply.document)

    @rule(id_=ids)
    def resume(self, id_: str) -> None:
        reply = self.call("POST", f"/v1/transactions/{id_}/resume", {"reason": "again"})
        self.follow(id_, self.each(id_, model.resume), reply.status, reply.document)

    @rule(id_=ids)
    def abandon(self, id_: str) -> None:
        """Nothing stays blocked while all topics are there."""
        reply = self.call("POST", f"/v1/transactions/{id_}/abandon", {"reason": "gone"})
        self.follow(id_, self.each(id_, model.abandon), reply.status, reply.document)

    @rule(target=ids, group=GROUPS)
    def abandon_doomed(self, group: str) -> Any:
        """Its topic goes before it is committed, and somebody waits behind it until it is given up."""
        topics, order = self.bridge.memory.cluster.log, f"doomed {self.rank}"
        topics.create_topic(DOOMED)
        self.bridge.pass_ms(CATCH_UP_MS)
        bodies = [
            {"producer_group": group, "ordering_key": order, "messages": [{"topic": t}]} for t in (DOOMED, "orders")
        ]
        doomed, behind = self.prepare_alone(bodies[0]), self.prepare_alone(bodies[1])
        topics.delete_topic(DOOMED)
        for id_ in (doomed, behind):
            reply = self.call("POST", f"/v1/transactions/{id_}/commit")
            [branch] = model.end(self.known[id_], "COMMIT", self.now_ms, self.next_rank())
            blocked = Branch(branch.answer._replace(status=202), branch.after)
            self.follow(id_, [blocked], reply.status, reply.document)
            assert reply.document["blocked"] is True
        reply = self.call("POST", f"/v1/transactions/{doomed}/abandon", {"reason": "gone"})
        branch = model.abandon(self.known[doomed], self.now_ms, is_blocked=True)
        self.follow(doomed, [branch], reply.status, reply.document)
        self.bridge.pass_ms(CATCH_UP_MS)
        self.get(behind)
        return multiple(doomed, behind)

    @rule(id_=ids)
    def ask_now(self, id_: str) -> None:
        reply = self.call("POST", f"/v1/transactions/{id_}/check")
        self.follow(id_, self.each(id_, model.ask_now), reply.status, reply.document)

    # --- readers ---

    @rule(id_=ids)
    def get(self, id_: str) -> None:
        reply = self.call("GET", f"/v1/transactions/{id_}?include=messages")
        t = self.follow(id_, self.each(id_, model.get), reply.status, reply.document)
        assert [shown["topic"] for shown in reply.document["messages"]] == [m.topic for m in t.content.messages]

    @rule(group=GROUPS)
    def count(self, group: str) -> None:
        """Counts agree with each other always, and with the lists and the model once the projection has caught up."""
        self.bridge.pass_ms(CATCH_UP_MS)
        own = [t for t in self.known.values() if t.group == group]
        allowed = model.count(own, self.now_ms)
        stats = self.call("GET", "/v1/stats").document["groups"].get(group)
        if stats is None:
            assert not own
            return
        assert stats["prepared"] == len(own)
        assert stats["abandoned"] == sum(t.is_abandoned for t in own)
        assert stats["blocked"] == 0
        assert stats["prepared"] == sum(stats[name] for name in ("committed", "rolled_back", "parked", "pending"))
        for state, name in zip(allowed, ("pending", "parked", "committed", "rolled_back"), strict=True):
            least, most = allowed[state]
            assert least <= stats[name] <= most, f"{stats[name]} {name}, not {least}..{most}"
            listed = self.call("GET", f"/v1/transactions?producer_group={group}&state={state}&limit=500").document
            assert least <= len(listed["transactions"]) <= most
            assert {t["transaction_id"] for t in listed["transactions"]} <= {t.id for t in own}

    @rule()
    def look_at_topics(self) -> None:
        """Exactly what was committed is there, once, where its receipts say, in the order of the commits."""
        self.bridge.pass_ms(CATCH_UP_MS)
        places = {
            (topic, queue_id, record.queue_offset): record
            for topic, queues in TOPICS.items()
            for queue_id in range(queues)
            for record in self.bridge.read(topic, queue_id)
        }
        expected = model.visible(self.known.values())
        for t in expected:
            receipts = self.receipts.get(t.id) or self.fetch_receipts(t.id)
            assert len(receipts) == len(t.content.messages)
            for message, receipt in zip(t.content.messages, receipts, strict=True):
                topic, queue_id = receipt["topic"], receipt["partition"]
                record = places.pop((topic, queue_id, receipt["offset"]))
                assert shown(topic, record) == message._replace(partition=None), f"of {t.id}"
                assert message.partition in {None, queue_id}
        assert not places, "visible, and nobody committed it"
        for earlier, later in self.pairs(expected):
            for a in self.receipts[earlier.id]:
                for b in self.receipts[later.id]:
                    is_shared = (a["topic"], a["partition"]) == (b["topic"], b["partition"])
                    assert not is_shared or a["offset"] < b["offset"], f"{later.id} before {earlier.id}"

    @invariant()
    def nothing_is_wrong(self) -> None:
        """Checks come when they should, and no others."""
        assert self.wrong == []
        late = [t.id for t in self.known.values() if model.is_overdue(t, self.now_ms)]
        assert late == [], "nobody was asked"

    # --- how ---

    @property
    def now_ms(self) -> int:
        return self.bridge.clock.now_ms()

    def next_rank(self) -> int:
        self.rank += 1
        return self.rank

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        """One request; endpoints answer before it or after it, never in between."""
        self.is_calling = True
        try:
            return self.bridge.call(method, path, body, headers)
        finally:
            self.is_calling = False

    def hear_prepare(self, body: dict[str, Any], is_published: bool, status: int, heard: dict[str, Any]) -> str | None:
        group, key = body["producer_group"], body.get("idempotency_key")
        content = Content(tuple(map(read_message, body["messages"])), body.get("ordering_key"), is_published)
        known = self.known.get(self.keyed.get((group, key), "")) if key else None
        if known is not None:
            self.follow(known.id, model.repeat(known, content, self.now_ms), status, heard)
            return None
        id_ = heard.get("transaction_id", "")
        assert id_ not in self.known
        if key:
            self.keyed[group, key] = id_
        own = TERMS[group]
        terms = own._replace(
            timeout_ms=max(own.timeout_ms, body.get("check_immunity_seconds", 0) * 1000),
            max_checks=body.get("max_checks", own.max_checks),
            life_ms=body.get("max_lifetime_seconds", own.life_ms // 1000) * 1000,
        )
        made = model.make(id_, group, content, terms, self.now_ms, self.next_rank())
        self.follow(id_, [Branch(Answer(200 if is_published else 201, state=made.state), made)], status, heard)
        return str(id_)

    def follow(self, id_: str, branches: Sequence[Branch], status: int, heard: dict[str, Any]) -> Transaction:
        """The branch that was taken. Raises AssertionError if none allows the answer."""
        seen = answer_of(status, heard)
        fitting = [branch for branch in branches if agree(branch.answer, seen)]
        assert fitting, f"{id_}: {seen} is none of {[branch.answer for branch in branches]}"
        after = self.known[id_] = fitting[0].after
        if status == 200:
            assert heard["transaction_id"] == id_
            assert heard["blocked"] is False
            receipts = heard["receipts"]
            assert receipts == self.receipts.setdefault(id_, receipts) if receipts else not self.receipts.get(id_)
            assert heard.get("abandoned", False) is after.is_abandoned
            assert bool(receipts) == (heard["state"] == model.COMMITTED and not after.is_abandoned)
        return after

    def each(self, id_: str, act: Callable[[Transaction, int], Branch]) -> list[Branch]:
        """The branches of a call, from everything the transaction may be by now."""
        return [act(t, self.now_ms) for t in self.known[id_].may_be(self.now_ms)]

    def group_of(self, id_: str, whose: str) -> str | None:
        own = self.known[id_].group
        return {"its own": own, "another": "depot" if own != "depot" else "shop"}.get(whose)

    def fetch_receipts(self, id_: str) -> list[Any]:
        self.get(id_)
        return self.receipts[id_]

    def pairs(self, committed: Sequence[Transaction]) -> Iterator[tuple[Transaction, Transaction]]:
        """Those of one effective ordering key, the earlier commit first."""
        for place, later in enumerate(committed):
            for earlier in committed[:place]:
                if earlier.rank < later.rank and earlier.ordering_key == later.ordering_key:
                    yield earlier, later

    def endpoint(self, url: str) -> Callable[[EndpointCall], Any]:
        async def answer(call: EndpointCall) -> Response:
            checks = json.loads(call.body)["checks"]
            for check in checks:
                self.note_check(check, call.headers["webhook-id"])
            while self.is_calling:
                await self.bridge.clock.sleep_ms(BUSY_MS)
            return await self.say(self.moods[url], checks)

        return answer

    def note_check(self, check: dict[str, Any], round_id: str) -> None:
        id_ = check["transaction_id"]
        self.nonces.setdefault(id_, []).append(check["nonce"])
        try:
            self.known[id_] = model.asked(self.known[id_], check["check_number"], round_id, self.now_ms)
        except AssertionError as error:
            self.wrong.append(f"{id_}: {error}")

    async def say(self, mood: str, checks: Sequence[dict[str, Any]]) -> Response:
        if mood == "hangs":
            await self.bridge.clock.sleep_ms(10 * CALL_TIMEOUT_MS)
        if mood in {"refuses", "fails", "hangs"}:
            return Response(500 if mood == "fails" else 302)
        told = checks[1:] if mood == "leaves out" else checks
        rank = self.next_rank()
        said = []
        for check in told:
            id_, word = check["transaction_id"], self.words.get(check["transaction_id"], "UNKNOWN")
            nonce = "1-" + "x" * 22 if mood == "wrong nonce" else check["nonce"]
            said.append({"transaction_id": id_, "nonce": nonce, "resolution": word})
            if mood != "wrong nonce":
                branch, *_ = model.end(self.known[id_], word, self.now_ms, rank, number=check["check_number"])
                self.known[id_] = branch.after
        return Response(200, json.dumps({"resolutions": said}).encode())


def shown(topic: str, record: StoredMessage) -> Body:
    """A record as consumers see it, without the transaction's id."""
    assert record.headers[-1][0] == "transaction-id"
    return Body(topic, record.key, record.value, tuple(record.headers[:-1]))


@pytest.mark.timeout(1_200)
def test_no_call_surprises_the_model(tmp_path: Path, quiet: None) -> None:
    """What prepares, ends, checks, parking, operators and time do to a transaction is what the pages say."""
    more = int(os.environ.get("REFERENCE_EXAMPLES", "0"))
    machine = type("FolderMachine", (BridgeMachine,), {"folder": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=more or EXAMPLES,
            stateful_step_count=STEPS,
            derandomize=not more,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
