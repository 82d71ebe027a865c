"""Webhooks of a whole bridge: what is told, to whom, how often, and whom a receiver that is away holds up."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from standardwebhooks.webhooks import Webhook

from bridge.core.errors import HaltKind, SqlUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.core.properties import PROPERTIES_HEADER, encode_properties
from bridge.core.topics import PARKED_QUEUE
from bridge.core.transaction import make_transaction_id
from bridge.sql.events import (
    Happening,
    RoundCounts,
    add_deliveries,
    count_rounds,
    find_delivery,
    keep_events,
    make_cloud_event,
    note_failure,
    read_marks,
    remove_delivery,
    write_marks,
)
from bridge.sql.identity import _NOW_MS, Halt, clear_halt, store_halt
from bridge.sql.leases import LeaseHolder
from bridge.sql.projection import clear_projection
from bridge.sql.tables import leases, webhook_deliveries
from bridge.store.message_store import PutStatus
from checker.call import EndpointCall
from checker.webhooks import EVENT_TYPES, FAILING, KEPT_MS, PARKED, RECOVERED, STALLED, WebhookTarget, judge_group
from tests.support.check_fakes import Response
from tests.support.whole_bridge import WholeBridge
from tests.unit.checker.world import SECRET

URL, OTHER_URL, CHECK_URL = "https://ops.example/hook", "https://pager.example/x?token=t", "https://shop.example/check"
SLOW = {"transaction_timeout_seconds": 1, "interval_seconds": 10, "max_checks": 100}
FAST = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1}


@dataclass
class Receiver:
    """Keeps what it is told; `status`, `retry_after`: what it says to it; `hangs`: it says nothing."""

    calls: list[EndpointCall] = field(default_factory=list)
    status: int = 204
    hangs: bool = False
    retry_after: str | None = None

    async def take(self, call: EndpointCall) -> Response:
        self.calls.append(call)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return Response(self.status, retry_after=self.retry_after)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(call.body) for call in self.calls]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]


@dataclass
class Scene:
    bridge: WholeBridge
    ops: Receiver
    pager: Receiver

    def park(self, group: str = "shop") -> str:
        """A transaction that nobody decides and one check gives up."""
        body = {"producer_group": group, "messages": [{"topic": "orders", "value": 1}]}
        reply = self.bridge.call("POST", "/v1/transactions", body)
        assert reply.status == 201, reply
        self.bridge.pass_ms(30_000)
        return str(reply.document["transaction_id"])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Two receivers: of everything, and of what is parked alone."""
    targets = [WebhookTarget("ops", URL, [SECRET]), WebhookTarget("pager", OTHER_URL, [SECRET], [PARKED])]
    with WholeBridge(tmp_path, {"orders": 1}, webhooks=targets) as bridge:
        ops, pager = Receiver(), Receiver()
        bridge.endpoints.update({URL: ops.take, OTHER_URL: pager.take, CHECK_URL: answer_unknown})
        bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": CHECK_URL}], "check": FAST})
        bridge.pass_ms(5_000)
        yield Scene(bridge, ops, pager)


async def answer_unknown(call: EndpointCall) -> Response:
    """An endpoint that never knows."""
    asked = json.loads(call.body)["checks"]
    answers = [{"transaction_id": c["transaction_id"], "nonce": c["nonce"], "resolution": "UNKNOWN"} for c in asked]
    return Response(200, json.dumps({"resolutions": answers}).encode())


def test_parked_transaction_is_told_to_all_who_want_it(scene: Scene) -> None:
    """Once each, signed as checks are, as a CloudEvent; both hear the same id."""
    transaction_id = scene.park()
    assert (scene.ops.types(), scene.pager.types()) == ([PARKED], [PARKED])
    [call], [event] = scene.ops.calls, scene.ops.events
    now_s = scene.bridge.clock.now_ms() // 1000
    assert abs(int(call.headers["webhook-timestamp"]) - now_s) < 60
    signature = Webhook(SECRET).sign(call.headers["webhook-id"], _at(call), call.body.decode())
    assert call.headers["webhook-signature"] == signature
    assert call.headers["Content-Type"] == "application/cloudevents+json"
    assert call.headers["webhook-id"] == event["id"] == scene.pager.events[0]["id"]
    assert (event["specversion"], event["subject"]) == ("1.0", transaction_id)
    assert event["data"] == {
        "transaction_id": transaction_id, "producer_group": "shop", "reason": "MAX_CHECKS", "checks": 1,
    }  # fmt: skip


def _at(call: EndpointCall) -> Any:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(int(call.headers["webhook-timestamp"]), UTC)


def test_receiver_that_hangs_holds_up_nobody(scene: Scene) -> None:
    """Neither the other receiver nor checks and settling; when it is back it gets everything, in order."""
    scene.pager.hangs = True
    ids = [scene.park(), scene.park()]
    assert [event["subject"] for event in scene.ops.events] == ids
    assert len(scene.pager.calls) >= 2
    assert {event["subject"] for event in scene.pager.events} == {ids[0]}
    scene.pager.hangs, first = False, scene.pager.events[0]["id"]
    scene.pager.calls.clear()
    scene.bridge.pass_ms(120_000)
    assert [event["subject"] for event in scene.pager.events] == ids
    assert scene.pager.events[0]["id"] == first
    listed = {one["name"]: one for one in scene.bridge.call("GET", "/v1/webhooks").document["webhooks"]}
    assert (listed["pager"]["waiting"], listed["pager"]["url"]) == (0, "https://pager.example")


@pytest.mark.parametrize("retry_after", ["9" * 5_000, "\u0663" * 5_000, "-1", "soon"])
def test_receiver_that_asks_for_a_pause_without_sense_holds_up_nobody(scene: Scene, retry_after: str) -> None:
    """It is tried again with growing pauses, as one that asks for none, and every other receiver is told once."""
    scene.pager.status, scene.pager.retry_after = 503, retry_after
    ids = [scene.park(), scene.park()]
    scene.bridge.pass_ms(60_000)
    assert [event["subject"] for event in scene.ops.events] == ids
    assert {event["subject"] for event in scene.pager.events} == {ids[0]}
    assert 5 <= len(scene.pager.calls) <= 10


def test_event_that_a_receiver_refuses_is_given_up_and_the_next_is_told(scene: Scene) -> None:
    """After five tries; an answer that says nothing of the event is tried for a day."""
    scene.ops.status = 422
    first = scene.park()
    scene.bridge.pass_ms(60_000)
    assert [event["subject"] for event in scene.ops.events] == [first] * 5
    scene.ops.status = 503
    second = scene.park()
    scene.bridge.pass_ms(200_000)
    assert {event["subject"] for event in scene.ops.events[5:]} == {second}
    assert 6 < len(scene.ops.events[5:]) < 12
    [waiting] = [one for one in scene.bridge.call("GET", "/v1/webhooks").document["webhooks"] if one["name"] == "ops"]
    assert (waiting["waiting"], waiting["last_failure"]) == (1, "status 503")
    scene.bridge.sql(lambda conn: conn.execute(sa.update(webhook_deliveries).values(created_ms=-KEPT_MS)))
    scene.ops.calls.clear()
    scene.bridge.pass_ms(260_000)
    assert {event["subject"] for event in scene.ops.events} == {second}
    assert len(scene.ops.events) == 1
    assert scene.bridge.call("GET", "/v1/webhooks").document["webhooks"][0]["waiting"] == 0


def test_event_that_is_a_day_old_is_told_to_a_receiver_that_is_there(scene: Scene) -> None:
    """The bridge may have been away as long as the event waited: nobody has been asked meanwhile."""
    scene.ops.status = 503
    transaction_id = scene.park()
    scene.bridge.sql(lambda conn: conn.execute(sa.update(webhook_deliveries).values(created_ms=-KEPT_MS)))
    scene.ops.status = 204
    scene.ops.calls.clear()
    scene.bridge.pass_ms(260_000)
    assert [event["subject"] for event in scene.ops.events] == [transaction_id]


def test_process_whose_clock_is_ahead_gives_up_no_event(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its clock alone each event was a day old, and given up with the first try in vain."""
    scene.ops.status = 503
    transaction_id = scene.park()
    scene.bridge.sql(lambda conn: conn.execute(sa.update(webhook_deliveries).values(created_ms=-KEPT_MS)))
    monkeypatch.setitem(_NOW_MS, "sqlite", f"SELECT {-KEPT_MS + 60_000}")
    scene.bridge.pass_ms(260_000)
    scene.ops.status = 204
    scene.ops.calls.clear()
    scene.bridge.pass_ms(600_000)
    assert [event["subject"] for event in scene.ops.events] == [transaction_id]


def test_tries_in_vain_are_no_refusals(scene: Scene) -> None:
    """A receiver that was away for long, and refuses once as it comes back, gets the event all the same."""
    scene.ops.status = 503
    transaction_id = scene.park()
    while len(scene.ops.calls) < 5:
        scene.bridge.pass_ms(5_000)
    scene.ops.status = 400
    while len(scene.ops.calls) < 6:
        scene.bridge.pass_ms(5_000)
    scene.ops.status = 204
    scene.bridge.pass_ms(60_000)
    assert [event["subject"] for event in scene.ops.events] == [transaction_id] * 7


def test_parked_topic_that_was_made_again_is_read_from_its_beginning(scene: Scene) -> None:
    """What was noted of the one before says nothing of it."""
    scene.park()
    told = scene.ops.events[0]
    marks = scene.bridge.sql(read_marks)
    for offset in (marks["parked"], "500"):
        before = {"parked": offset, "parked-topic": "another"}
        scene.bridge.sql(lambda conn, before=before: write_marks(conn, before))
        scene.ops.calls.clear()
        scene.bridge.pass_ms(10_000)
        assert scene.ops.events == [told]
        assert scene.bridge.sql(read_marks) == marks


def test_foreign_record_in_the_parked_topic_is_passed_over(scene: Scene) -> None:
    """Whatever it seems to be: what is parked behind it is told."""
    half = {"KIND": "H", "UNIQ_KEY": make_transaction_id(0, 1), "V": "1", "N": "1", "PGROUP": "shop", "BORN": "1"}
    half |= {"REAL_TOPIC": "orders", "REAL_QID": "-1", "WHY": "MAX_CHECKS"}
    for more in ({}, {"TRANSACTION_CHECK_TIMES": "many"}, {"TRANSACTION_CHECK_TIMES": "9" * 5_000}):
        headers = [(PROPERTIES_HEADER, encode_properties(half | more))]
        foreign = Message(scene.bridge.memory.topics.parked, None, b"1", headers, PARKED_QUEUE)
        stored = scene.bridge.run(scene.bridge.memory.store.put_many([foreign]))
        assert stored[0].status is PutStatus.PUT_OK, stored
    transaction_id = scene.park()
    assert [event["subject"] for event in scene.ops.events] == [transaction_id]


def test_group_that_answers_nothing_fails_and_recovers(scene: Scene) -> None:
    """Told once each."""
    del scene.bridge.endpoints[CHECK_URL]
    scene.bridge.call(
        "PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": CHECK_URL}], "check": FAST | {"max_checks": 3}}
    )
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": 1}]}
    scene.bridge.call("POST", "/v1/transactions", body)
    scene.bridge.pass_ms(300_000)
    assert scene.ops.types() == [FAILING]
    assert scene.ops.events[0]["data"]["producer_group"] == "shop"
    scene.bridge.endpoints[CHECK_URL] = answer_unknown
    scene.bridge.pass_ms(120_000)
    assert scene.ops.types()[:2] == [FAILING, RECOVERED]
    assert scene.ops.types().count(RECOVERED) == 1
    assert PARKED in scene.ops.types()


def test_rebuild_of_the_projection_is_no_recovery(scene: Scene) -> None:
    """It counts the answers of long ago anew: nobody has answered."""
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": 1}]}
    scene.bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": CHECK_URL}], "check": SLOW})
    scene.bridge.call("POST", "/v1/transactions", body)
    scene.bridge.pass_ms(60_000)
    del scene.bridge.endpoints[CHECK_URL]
    scene.bridge.pass_ms(150_000)
    assert scene.ops.types() == [FAILING]
    scene.bridge.sql(clear_projection)
    scene.bridge.pass_ms(150_000)
    assert scene.bridge.sql(count_rounds)["shop"].answered > 0
    assert scene.ops.types() == [FAILING]
    scene.bridge.endpoints[CHECK_URL] = answer_unknown
    scene.bridge.pass_ms(60_000)
    assert scene.ops.types() == [FAILING, RECOVERED]


def test_group_recovers_with_its_next_answer_though_a_brokers_clock_was_ahead(scene: Scene) -> None:
    """Owners go on from the time they saw, so rounds in vain are dated an hour behind the answers that follow."""
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": 1}]}
    scene.bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": CHECK_URL}], "check": SLOW})
    journal = scene.bridge.memory.cluster.log.topics[scene.bridge.memory.topics.half].partitions
    for ahead_ms in (3_600_000, 0):
        for partition in journal:
            partition.ahead_ms = ahead_ms
        for _ in range(8):  # to every queue
            scene.bridge.call("POST", "/v1/transactions", body)
    scene.bridge.pass_ms(30_000)
    del scene.bridge.endpoints[CHECK_URL]
    scene.bridge.pass_ms(150_000)
    assert scene.ops.types() == [FAILING]
    scene.bridge.endpoints[CHECK_URL] = answer_unknown
    scene.bridge.pass_ms(60_000)
    assert scene.ops.types() == [FAILING, RECOVERED]


def test_group_that_fails_while_sql_is_away_is_told_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that it has recovered: an event that could not be kept is found again by the next look."""
    kept: list[str] = []

    def keep(conn: sa.Connection, wanted: Any, **rest: Any) -> Any:
        types = [event.type for event in wanted["ops"]]
        if types and types[0] not in kept:
            kept.append(types[0])
            raise SqlUnavailable("away")
        return keep_events(conn, wanted, **rest)

    monkeypatch.setattr("checker.webhooks.keep_events", keep)
    del scene.bridge.endpoints[CHECK_URL]
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": 1}]}
    scene.bridge.call("POST", "/v1/transactions", body)
    scene.bridge.pass_ms(150_000)
    assert (kept, scene.ops.types()) == ([FAILING], [FAILING])
    scene.bridge.endpoints[CHECK_URL] = answer_unknown
    scene.bridge.pass_ms(120_000)
    assert scene.ops.types().count(RECOVERED) == 1


def test_queue_that_halts_is_told_once(scene: Scene) -> None:
    """Until it has gone on and halts anew."""
    halt = Halt(1, HaltKind.OP_LOST, "the op topic was cut", scene.bridge.clock.now_ms())
    scene.bridge.sql(lambda conn: store_halt(conn, halt, 0))
    scene.bridge.pass_ms(30_000)
    assert scene.ops.types() == [STALLED]
    data = scene.ops.events[0]["data"]
    assert (data["queue"], data["kind"], data["detail"]) == (1, "op-lost", "the op topic was cut")


@pytest.mark.parametrize("status", [204, 503])
def test_receiver_is_not_called_again_because_sql_takes_no_note(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """While SQL can be read and not written, what has come of a call is kept in mind, not asked for every second."""
    is_away = True

    def unless_away(work: Any) -> Any:
        def write(conn: sa.Connection, **given: Any) -> None:
            if is_away:
                raise SqlUnavailable("the database is read-only")
            work(conn, **given)

        return write

    monkeypatch.setattr("checker.webhooks.remove_delivery", unless_away(remove_delivery))
    monkeypatch.setattr("checker.webhooks.note_failure", unless_away(note_failure))
    scene.ops.status = status
    transaction_id = scene.park()
    scene.bridge.pass_ms(60_000)
    assert [event["subject"] for event in scene.ops.events] == [transaction_id]
    is_away, scene.ops.status = False, 204
    ids = [transaction_id, scene.park()]
    assert list(dict.fromkeys(event["subject"] for event in scene.ops.events)) == ids
    assert len(scene.ops.calls) == (2 if status == 204 else 3)


@pytest.mark.parametrize("topic", ["half", "parked"])
def test_what_sql_knows_is_told_while_a_topic_cannot_be_read(scene: Scene, topic: str) -> None:
    """A queue that halts, as it does with its topic; what Kafka alone knows is told when it can be read again."""
    queue = MessageQueue(getattr(scene.bridge.memory.topics, topic), 0)
    log = scene.bridge.memory.cluster.log
    log.set_leader(queue, has_leader=False)
    halt = Halt(1, HaltKind.OP_LOST, "the op topic was cut", scene.bridge.clock.now_ms())
    scene.bridge.sql(lambda conn: store_halt(conn, halt, 0))
    scene.bridge.pass_ms(60_000)
    assert scene.ops.types().count(STALLED) == 1
    log.set_leader(queue, has_leader=True)
    scene.bridge.sql(lambda conn: clear_halt(conn, 1))
    scene.bridge.pass_ms(30_000)
    transaction_id = scene.park()
    assert scene.ops.types().count(STALLED) == 1
    assert [event["subject"] for event in scene.ops.events if event["type"] == PARKED] == [transaction_id]


def test_findings_of_a_report_are_told_and_those_of_a_run_only_once(scene: Scene) -> None:
    """By whoever calls, also twice while the first waits."""
    scene.ops.hangs = True
    body = {"run": 3, "taken_at": "2026-03-01T12:00:00Z", "sentence": "2 are lost", "findings": {"LOST": 2}}
    for _ in range(2):
        reply = scene.bridge.call("POST", "/v1/webhooks/findings", body)
        assert (reply.status, reply.document) == (202, {"webhooks": 1})
    scene.ops.hangs = False
    scene.bridge.pass_ms(60_000)
    assert {event["id"] for event in scene.ops.events} == {scene.ops.events[0]["id"]}
    assert scene.ops.events[0]["data"]["findings"] == {"LOST": 2}
    assert scene.pager.events == []
    entries = scene.bridge.call("GET", "/v1/audit?limit=2").document["entries"]
    told = ("webhook.findings", "3", {**body, "taken_at": "2026-03-01T12:00:00.000Z"})
    assert [(e["action"], e["target"], e["after"]) for e in entries] == [told] * 2  # whoever raises an alarm is named


def test_test_is_sent_at_once_and_audited(scene: Scene) -> None:
    """Past what waits; the answer says what became of it."""
    reply = scene.bridge.call("POST", "/v1/webhooks/pager/test")
    assert (reply.status, reply.document["told"], reply.document["status"]) == (200, True, 204)
    assert scene.pager.types() == ["webhook.test"]
    scene.pager.status = 500
    refused = scene.bridge.call("POST", "/v1/webhooks/pager/test").document
    assert (refused["told"], refused["failure"]) == (False, "status 500")
    entries = scene.bridge.call("GET", "/v1/audit?limit=2").document["entries"]
    assert [(e["action"], e["target"]) for e in entries] == [("webhook.test", "pager")] * 2
    assert "token" not in json.dumps(entries)
    assert scene.bridge.call("POST", "/v1/webhooks/nobody/test").status == 404


def test_events_that_wait_are_bounded(scene: Scene) -> None:
    """For each receiver; those that wait already are no new ones."""
    events = [make_cloud_event("urn:x", Happening(PARKED, str(n), "s", 0, {})) for n in range(5)]

    def fill(conn: sa.Connection) -> list[int]:
        return [add_deliveries(conn, "gone", events, 0, most) for most in (3, 3, 100)]

    assert scene.bridge.sql(fill) == [2, 5, 0]
    assert scene.bridge.sql(lambda conn: find_delivery(conn, "gone")).event_id == events[0].event_id


def test_what_is_parked_crowds_no_alarm_out(scene: Scene) -> None:
    """One producer can have as many transactions parked as it likes."""
    parked = [make_cloud_event("urn:x", Happening(PARKED, str(n), "s", 0, {})) for n in range(20)]
    alarm = make_cloud_event("urn:x", Happening(STALLED, "1", "1", 0, {}))
    add = partial(add_deliveries, webhook="pager", now_ms=0, most=10)
    assert scene.bridge.sql(lambda conn: [add(conn, events=parked), add(conn, events=[alarm])]) == [11, 0]


def test_two_processes_tell_each_event_once(scene: Scene) -> None:
    """The other one waits for the lease."""
    other = LeaseHolder(scene.bridge.database, scene.bridge.clock, "webhooks", "other")
    assert scene.bridge.run(other.hold()) is False


def test_process_that_tells_no_more_shows_nothing_that_waits(scene: Scene) -> None:
    """Another one has the lease and tells it: a number that stands still would be an event that nobody takes."""
    scene.ops.status = 503
    scene.park()
    webhooks = scene.bridge._bridge._node.webhooks  # as /metrics reads it
    assert webhooks.waiting.keys() == {"ops"}
    later_ms = scene.bridge.clock.now_ms() + 3_600_000
    taken = sa.update(leases).where(leases.c.name == "webhooks").values(owner="other", until_ms=later_ms)
    scene.bridge.sql(lambda conn: conn.execute(taken))
    scene.bridge.pass_ms(4_000)  # then nobody has renewed it
    assert webhooks.waiting == {}


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([(0, 0, 0), (0, 3, 100), (0, 5, 60_000)], [None, None, None]),
        ([(0, 0, 0), (0, 1, 100), (0, 5, 60_100)], [None, None, FAILING]),
        ([(0, 0, 0), (0, 1, 100), (0, 2, 90_000)], [None, None, None]),
        ([(0, 0, 0), (0, 1, 100), (1, 5, 90_000)], [None, None, None]),
        (
            [(7, 9, 5), (7, 10, 100), (7, 12, 61_000), (7, 13, 90_000), (8, 13, 90_000)],
            [None, None, FAILING, None, RECOVERED],
        ),
    ],
)
def test_group_fails_after_a_minute_without_any_answer(
    steps: list[tuple[int, int, int]], told: list[str | None]
) -> None:
    """And at least three rounds; what was before the first look does not count."""
    mark, found = None, []
    for step in steps:
        mark, event_type = judge_group(mark, RoundCounts(*step, step[2]))
        mark = type(mark).load(mark.dump()) if mark.since_ms else mark
        found.append(event_type)
    assert found == told


def test_every_type_is_one_of_the_settings() -> None:
    """One list says what can be wanted."""
    from api.setting_sections import WebhookSettings  # noqa: PLC0415

    assert WebhookSettings.model_fields["events"].default == EVENT_TYPES
