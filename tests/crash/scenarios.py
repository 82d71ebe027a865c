"""What makes a process pass each crash point, and what must hold right after its death besides the promises.

A scenario gets a stage without tables and internal topics, and the point. Numbers in brackets: rows of the table of
crash points in the list of faults.
"""

from collections.abc import Callable, Mapping
from functools import partial

import httpx2

from bridge.fault_points import FaultPoint as P
from tests.crash.check_scenarios import check, die_asking, fetch, put_group
from tests.support.bridge_process import BridgeProcess, check_endpoint, create_topics, wait_until
from tests.support.cluster_acts import delete_topic, read_positions, read_states, set_topic_config
from tests.support.crash_stage import GROUP, PATIENCE_S, Json, Operation, Scenario, Stage

Look = Callable[[Stage], None]
_LARGE_BYTES = 2_000_000  # more than one request of a writer: its size is not lowered with the topic's
_TRIES = 8


def nothing_more(_: Stage) -> None:
    """The promises say it all."""


# --- what stands right after the death ---


def nothing_stored(stage: Stage) -> None:
    """The journal has no half message [1]."""
    assert stage.journal("H") == []


def half_stored(stage: Stage) -> None:
    """The journal has what was acknowledged to nobody [2, 3, 4]: several messages are one record.

    A keyed one may lie there twice: it is void if the process knew no time of Kafka's yet, and is appended again.
    """
    assert len(stage.ids_in("H")) == 5
    assert all(deed.transaction_id is None for deed in stage.deeds)


def end_not_stored(stage: Stage) -> None:
    """The journal has half messages and no end [5]."""
    assert stage.journal("H")
    assert stage.journal("E") == []


def end_stored(stage: Stage) -> None:
    """The journal has ends that nobody was told of [6]."""
    assert len(stage.ids_in("E")) == 4
    assert stage.acknowledged_ids() == set()


def nothing_new_visible(stage: Stage) -> None:
    """A committed reader has what was acknowledged, not the batch [7, 8, 9]."""
    assert stage.visible_ids() == stage.acknowledged_ids()


def sent_but_invisible(stage: Stage) -> None:
    """Records are in the topics, and only a reader of open Kafka transactions has them [8, 9]."""
    nothing_new_visible(stage)
    assert len(stage.visible("read_uncommitted")) > len(stage.visible())


def settled_is_visible(stage: Stage) -> None:
    """What the op topic says is published is visible, nothing else is; who was told was told what is so [7, 10].

    On a busy machine the batch before the death may be one that only says that commits are blocked, or may hold a
    part of one call's ends; and a reader in the same process may be quicker than the death.
    """

    def published() -> set[str | None]:
        ops = last_ops_of(stage)
        return {i for i, op in ops.items() if op["state"] == "COMMITTED" and not op.get("blocked")}

    wait_until(lambda: last_ops_of(stage) and published() == stage.visible_ids(), name="the markers in all topics")
    assert stage.acknowledged_ids() <= stage.visible_ids()


# --- a process with all roles, killed under its producers ---


def play(stage: Stage, point: P, *, passing: int = 1, look: Look = nothing_more) -> None:
    """Producers work with a process until it dies; the successor tells them the truth."""
    stage.command("migrate")
    victim = stage.start(point, passing)
    if stage.is_ready(victim):
        stage.play(victim)
    finish(stage, victim, look)


def settle(stage: Stage, point: P, *, look: Look) -> None:
    """The first batch with effects is that of the ends: half messages without a key ask for no answer."""
    several = (stage.orders, stage.credits, stage.orders)
    stage.command("migrate")
    victim = stage.start_ready(point)
    deeds = [stage.draft("COMMIT", *topics, keyed=False) for topics in (several, (), several, (stage.credits,))]
    deeds.append(stage.draft("ROLLBACK", *several, keyed=False))
    assert stage.prepare(victim, deeds)
    stage.end(victim, deeds)
    finish(stage, victim, look)


def restart(stage: Stage, point: P) -> None:
    """A process works and is killed; the next one dies while it takes over or starts; a third one goes on [16, 19]."""
    stage.command("migrate")
    first = stage.serve()
    stage.undecided(2, first)
    for _ in range(2):
        stage.play_round(first)
    owner = read_positions(stage.bridge)[0]["owner"]
    late = [stage.draft("COMMIT", stage.orders, stage.credits), stage.draft("ROLLBACK")]
    assert stage.prepare(first, late)
    first.kill()
    for deed in late:
        stage.append_end(deed)  # beyond S: nobody has decided it
    victim = stage.start(point)
    stage.wait_dead(victim)
    if point is not P.TAKE_OVER_COMMITTED:
        assert read_positions(stage.bridge)[0]["owner"] == owner
    finish(stage, victim, nothing_more)


def finish(stage: Stage, victim: BridgeProcess, look: Look) -> None:
    """Sees the victim dead, lets a successor answer what is open, and looks whether all promises hold."""
    stage.wait_dead(victim)
    look(stage)
    successor = stage.serve()
    stage.wait_recorded(successor)
    stage.repeat(successor)
    assert stage.play_round(successor)
    stage.repeat(successor)
    stage.verify(successor)


def idle(stage: Stage, point: P) -> None:
    """Half messages that ask for no answer move S, and nothing else is written."""
    stage.command("migrate")
    victim = stage.start_ready(point)
    stage.prepare(victim, [stage.draft(None, keyed=False) for _ in range(3)])
    stage.wait_dead(victim)
    wait_until(lambda: (read_positions(stage.bridge)[0]["s"] > 0) is (point is P.POSITION_COMMITTED), name="S")
    finish(stage, victim, nothing_more)


# --- carry forward ---


def carry_forward(stage: Stage, point: P) -> None:
    """Undecided ones hold L until they are put back; neither state nor new L and O before the commit [15].

    The batch that dies may have put back the oldest alone: where batches end decides how many are old enough.
    """

    def states_of_held() -> set[str | None]:
        return {states_of(stage).get(deed.transaction_id) for deed in held}

    def look(_: Stage) -> None:
        if point is P.CARRY_COMMITTED:
            wait_until(lambda: "PREPARED" in states_of_held(), name="op messages of what holds L")
            assert states_of_held() <= {"PREPARED", None}
        else:
            assert states_of_held() == {None}

    stage.command("migrate")
    victim = stage.start_ready(point)
    held = stage.undecided(3, victim)
    stage.play(victim)
    finish(stage, victim, look)
    wait_until(lambda: states_of_held() == {"PREPARED"}, name="put back")


def states_of(stage: Stage) -> dict[str | None, str]:
    """The state in the last op message of each transaction."""
    return {i: op["state"] for i, op in last_ops_of(stage).items()}


def last_ops_of(stage: Stage) -> dict[str, Json]:
    """The last op message of each transaction."""
    return {i: states[-1] for i, states in read_states(stage.bridge).items()}


# --- blocked commits ---


def block(stage: Stage, point: P) -> None:
    """The destination has become too small for what was prepared: the commit stands and waits for room."""
    stage.bridge.settings["OUTBOX_BRIDGE_LIMITS__MESSAGE_BYTES"] = str(2 * _LARGE_BYTES)
    set_limit(stage, 2 * _LARGE_BYTES)
    stage.command("migrate")
    victim = stage.start_ready(point)
    for _ in range(_TRIES):  # the settler must know the topic as it was, and looks anew every few seconds
        blocked = make_large(stage.draft("COMMIT", stage.credits), _LARGE_BYTES)
        published = [stage.draft("COMMIT", stage.credits, published=True)]
        if not (stage.publish(victim, published) and stage.prepare(victim, [blocked])):
            break
        set_limit(stage, _LARGE_BYTES // 2)
        if not stage.end(victim, [blocked]):
            break
        set_limit(stage, 2 * _LARGE_BYTES)
        try:
            stage.wait_state(victim, blocked, "COMMITTED")
        except httpx2.TransportError:  # answered as not decided yet, and died only then
            break
    stage.wait_dead(victim)
    set_limit(stage, _LARGE_BYTES // 2)
    blocked.state = None  # a quick reader may have told that it is committed and blocked: then it is not visible either
    nothing_new_visible(stage)
    successor = stage.serve()
    assert stage.end(successor, [blocked])
    wait_until(lambda: stage.get(successor, blocked.transaction_id).get("blocked"), PATIENCE_S, "a blocked commit")
    set_limit(stage, 2 * _LARGE_BYTES)
    stage.wait_state(successor, blocked, "COMMITTED")
    assert stage.play_round(successor)
    stage.repeat(successor)
    stage.verify(successor)


def set_limit(stage: Stage, max_message_bytes: int) -> None:
    set_topic_config(stage.kafka, stage.credits, {"max.message.bytes": str(max_message_bytes)})


def make_large(deed: Operation, size: int) -> Operation:
    """The same with a longer value."""
    value = "x" * size
    deed.body["messages"][0]["value"] = value
    topic, key, _, headers = deed.contents[0]
    deed.contents[0] = topic, key, value.encode(), headers
    return deed


def retry(stage: Stage, point: P) -> None:
    """The destination was deleted and comes back; its blocked commit is published once."""
    stage.command("migrate")
    victim = stage.start_ready(point)
    blocked = stage.draft("COMMIT", stage.credits)
    assert stage.prepare(victim, [blocked])
    delete_topic(stage.kafka, stage.credits)
    assert stage.end(victim, [blocked])
    create_topics(stage.kafka, {stage.credits: 1})
    stage.wait_dead(victim)
    if point is P.RETRY_COMMITTED:
        wait_until(lambda: blocked.transaction_id in stage.visible_ids(), name="the marker")
    else:
        assert stage.visible() == []
        assert stage.visible("read_uncommitted")
    successor = stage.serve()
    stage.wait_state(successor, blocked, "COMMITTED")
    assert stage.play_round(successor)
    stage.repeat(successor)
    stage.verify(successor)


# --- parking ---


def park(stage: Stage, point: P) -> None:
    """One answered check and no decision: parked, with a copy, in one Kafka transaction [17, 18]."""
    stage.command("migrate")
    with check_endpoint("UNKNOWN") as endpoint:
        victim = stage.start_ready(point)
        put_group(victim, endpoint, max_checks=1)
        deeds = [stage.draft(None) for _ in range(3)]
        stage.prepare(victim, deeds)
        stage.wait_dead(victim)
        if point is P.PARK_COMMITTED:
            wait_until(stage.parked_ids, name="the markers")
        else:
            assert stage.parked_ids() == []
            assert "PARKED" not in states_of(stage).values()
        copied = set(stage.parked_ids())  # all three, unless the first answers came alone
        assert copied <= stage.ids_in("H")
        successor = stage.serve()
        stage.learn_ids(successor)
        for deed in deeds:
            told = stage.wait_state(successor, deed, "PARKED")
            assert told["check_times"] == 1
            is_alone = point is P.PARK_COMMITTED and deed.transaction_id not in copied  # its answer may have died too
            assert endpoint.asked(str(deed.transaction_id)) in ({1, 2} if is_alone else {1})
        assert sorted(stage.parked_ids()) == sorted(str(deed.transaction_id) for deed in deeds)
        stage.verify(successor)
        deeds[0].wish, deeds[0].state = "COMMIT", None
        stage.repeat(successor)
        stage.verify(successor)


def redrive(stage: Stage, point: P) -> None:
    """A page of parked ones is committed, the job's row does not say so: done again, nothing changes twice."""
    stage.command("migrate")
    with check_endpoint("UNKNOWN") as endpoint:
        victim = stage.start_ready(point)
        put_group(victim, endpoint, max_checks=1)
        deeds = stage.undecided(3, victim)
        for deed in deeds:
            stage.wait_state(victim, deed, "PARKED")
        body = {"action": "commit", "filter": {"producer_group": GROUP}, "reason": "a test"}
        assert victim.post("/v1/parked/redrive", body).status_code == 202
        stage.wait_dead(victim)
        stage.sql("UPDATE redrive_jobs SET lease_until_ms = 0")  # else it is the dead one's for a minute
        successor = stage.serve()
        wait_until(lambda: is_redriven(successor), PATIENCE_S, "the job's end")
        for deed in deeds:
            stage.wait_state(successor, deed, "COMMITTED")
        stage.verify(successor)


def is_redriven(process: BridgeProcess) -> bool:
    (job,) = process.get("/v1/parked/redrive").json()["jobs"]
    return bool(job["state"] == "done")


# --- operators and the directory ---


def act(stage: Stage, point: P) -> None:
    """Asked to ask now; the audit has it before the journal, and repeating it does no harm."""
    stage.command("migrate")
    with check_endpoint("") as endpoint:
        endpoint.status = 500
        victim = stage.start_ready(point)
        put_group(victim, endpoint)
        (deed,) = stage.undecided(1, victim)

        def ask(process: BridgeProcess) -> bool:
            reply = process.post(f"/v1/transactions/{deed.transaction_id}/check")
            assert reply.status_code in {202, 409, 503}, reply.text
            return reply.status_code == 202

        die_asking(stage, victim, ask)
        assert len(stage.sql("SELECT 1 FROM audit WHERE what = 'transaction.check'")) == 1
        assert len(stage.journal("A")) == (point is P.ACT_ACKED)
        endpoint.status, endpoint.answers = 200, {str(deed.transaction_id): "COMMIT"}
        successor = stage.serve()
        wait_until(lambda: ask_or_ended(stage, successor, deed, ask), PATIENCE_S, "the act")
        stage.wait_state(successor, deed, "COMMITTED")
        stage.verify(successor)


def ask_or_ended(stage: Stage, process: BridgeProcess, deed: Operation, ask: Callable[[BridgeProcess], bool]) -> bool:
    return stage.get(process, deed.transaction_id)["state"] == "COMMITTED" or ask(process)


def directory(stage: Stage, point: P) -> None:
    """A secret is rotated: the old state or the new one, with its audit entry or without it [20]."""
    stage.command("migrate")
    victim = stage.start(point, 2)
    assert stage.is_ready(victim)
    with check_endpoint("COMMIT") as endpoint:
        put_group(victim, endpoint)
        (deed,) = stage.undecided(1, victim)
        rotate = f"/v1/producer-groups/{GROUP}/rotate-secret"
        die_asking(stage, victim, lambda process: process.post(rotate).status_code == 200)
        is_new = point is P.DIRECTORY_COMMITTED
        assert len(stage.sql("SELECT 1 FROM secrets")) == 1 + is_new
        assert len(stage.sql("SELECT 1 FROM audit WHERE what = 'producer-group.rotate-secret'")) == is_new
        successor = stage.serve()
        assert successor.post(rotate).status_code == 200
        stage.wait_state(successor, deed, "COMMITTED")
        stage.verify(successor)


# --- commands ---


def migrate(stage: Stage, point: P) -> None:
    """The old state or the new one, and `migrate` once more makes it whole [20]."""
    passing = 2 if point is P.MIGRATE_TOPIC_CREATED else 1
    stage.command("migrate", point=point, passing=passing)
    tables = {name for (name,) in stage.sql("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert ("transactions" in tables) is (point is not P.MIGRATE_WRITTEN)
    stage.command("migrate")
    process = stage.serve()
    assert stage.play_round(process)
    stage.repeat(process)
    stage.verify(process)


def rebuild(stage: Stage, point: P) -> None:
    """The projection half made anew while the bridge works: it is whole in the end, and nothing is told wrong [19]."""
    stage.command("migrate")
    process = stage.serve()
    for _ in range(2):
        assert stage.play_round(process)
    stage.command("projection", "rebuild", point=point)
    assert stage.play_round(process)
    stage.repeat(process)
    stage.verify(process)
    stage.command("projection", "rebuild")
    stage.verify(process)


RESTARTS = (
    P.START_CHECKED, P.START_LOOPS, P.TAKE_OVER_BEGUN, P.TAKE_OVER_HALF_FENCED, P.TAKE_OVER_FENCED,
    P.TAKE_OVER_READ_POSITION, P.TAKE_OVER_READ_OP, P.TAKE_OVER_READ_JOURNAL, P.TAKE_OVER_SENT_ALL,
    P.TAKE_OVER_COMMITTED,
)  # fmt: skip
PARKS = (P.PARK_CHOSEN, P.PARK_SENT_COPY, P.PARK_SENT_ALL, P.PARK_COMMITTED)
CHECKS = (P.CHECK_PICKED, P.CHECK_SIGNED, P.CHECK_ANSWERED, P.CHECK_APPENDED)
MIGRATIONS = (
    P.MIGRATE_WRITTEN, P.MIGRATE_COMMITTED, P.MIGRATE_TOPIC_CREATED, P.MIGRATE_TOPICS_CREATED, P.MIGRATE_RECORDED,
)  # fmt: skip

SCENARIOS: Mapping[P, Scenario] = {
    P.GROUP_CREATED: partial(play, look=nothing_stored),
    P.PREPARE_LOOKED_UP: partial(play, look=nothing_stored),
    P.PREPARE_UNSENT: partial(play, look=nothing_stored),
    P.PREPARE_ACKED: partial(play, look=half_stored),
    P.PREPARE_HEARD: partial(play, look=half_stored),
    P.APPEND_HANDED_OVER: play,
    P.APPEND_REPORTED: partial(play, look=half_stored),
    P.END_UNSENT: partial(play, look=end_not_stored),
    P.END_ACKED: partial(play, look=end_stored),
    P.END_HEARD: partial(play, look=end_stored),
    P.ACT_AUDITED: act,
    P.ACT_ACKED: act,
    P.REDRIVE_ACTED: redrive,
    P.DIRECTORY_WRITTEN: directory,
    P.DIRECTORY_COMMITTED: directory,
    P.SETTLE_READ: partial(play, passing=5, look=settled_is_visible),
    P.SETTLE_DECIDED: partial(settle, look=nothing_new_visible),
    P.SETTLE_SENT_REAL: partial(settle, look=sent_but_invisible),
    P.SETTLE_SENT_ALL: partial(settle, look=sent_but_invisible),
    P.SETTLE_COMMITTED: partial(settle, look=settled_is_visible),
    P.POSITION_SENT_ALL: idle,
    P.POSITION_COMMITTED: idle,
    P.CARRY_SENT_ALL: carry_forward,
    P.CARRY_COMMITTED: carry_forward,
    P.ABORT_CLEAN: block,
    P.BLOCK_SENT_ALL: block,
    P.BLOCK_COMMITTED: block,
    P.RETRY_SENT_REAL: retry,
    P.RETRY_SENT_ALL: retry,
    P.RETRY_COMMITTED: retry,
    P.CHECK_UNANSWERED: partial(check, status=500),
    P.CHECKS_LAID: fetch,
    P.CHECKS_CLAIMED: fetch,
    P.PROJECT_READ: partial(play, passing=6),
    P.PROJECT_WRITTEN: partial(play, passing=6),
    P.PROJECT_COMMITTED: partial(play, passing=6),
    **dict.fromkeys(RESTARTS, restart),
    **dict.fromkeys(PARKS, park),
    **dict.fromkeys(CHECKS, check),
    **dict.fromkeys(MIGRATIONS, migrate),
    **dict.fromkeys((P.REBUILD_CLEARED, P.REBUILD_STEPPED, P.REBUILD_READ), rebuild),
}
