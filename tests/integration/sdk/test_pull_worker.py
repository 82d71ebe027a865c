"""Checks that a group fetches and answers itself, with both faces and a real bridge over HTTP."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from outbox import Bridge, LocalTransactionState, Message, NotPullMode, OutboxConfigError, PullConfig, Resolution
from outbox.client.check_source import AsyncPullWorker, PullWorker
from outbox.client.checks import Check, Tell
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.bridge_process import wait_until
from tests.support.sdk_twins import BlockingTwin, MakeTwin, Twin
from tests.support.socket_bridge import SocketBridge

PULL = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 50, "mode": "pull"}
SHORT = PullConfig(lease_s=1.5, send_s=1.0, wait_s=5.0, min_pause_s=0.05, max_pause_s=0.1)
Answered = Callable[[Sequence[Check], Tell], None]


def put_group(bridge: SocketBridge, group: str, **check: Any) -> None:
    bridge.put_json(f"/v1/producer-groups/{group}", {"endpoints": [], "check": {**PULL, **check}})


def worker_of(twin: Twin, answer: Answered, config: PullConfig = SHORT) -> Any:
    """Of the twin's colour; for an event loop the answer is awaited."""

    async def awaited(checks: Sequence[Check], tell: Tell) -> None:
        answer(checks, tell)

    made: PullWorker | AsyncPullWorker
    if isinstance(twin, BlockingTwin):
        made = twin.face.pull_worker(answer, config=config)
    else:
        made = twin.face.pull_worker(awaited, config=config)
    return made


async def run_once(worker: Any) -> Any:
    """One round; in a thread if it blocks."""
    return await worker.run_once() if isinstance(worker, AsyncPullWorker) else await asyncio.to_thread(worker.run_once)


class Running:
    """`run_forever` in a thread, or in a task."""

    def __init__(self, worker: Any) -> None:
        is_async = isinstance(worker, AsyncPullWorker)
        self._stop: Any = asyncio.Event() if is_async else threading.Event()
        forever = worker.run_forever(self._stop) if is_async else asyncio.to_thread(worker.run_forever, self._stop)
        self.ended = asyncio.ensure_future(forever)

    async def stop(self) -> None:
        self._stop.set()
        await self.ended


async def prepare(twin: Twin, *values: bytes) -> list[str]:
    return [(await twin.do("prepare", Message("line", value=value))).transaction_id for value in values]


async def wait_states(bridge: SocketBridge, group: str, *states: str) -> None:
    """Until the transactions of the group have these, newest first."""
    await asyncio.to_thread(wait_until, lambda: bridge.states_of(group) == list(states), name=f"{states}")


async def test_worker_answers_what_is_due_until_it_is_stopped(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """COMMIT is published, ROLLBACK is not; a stop in a long poll ends it."""
    put_group(bridge, group)
    twin = make_twin(bridge.url, group)
    kept, lost = await prepare(twin, group.encode(), b"lost")
    answers = {kept: Resolution.COMMIT, lost: Resolution.ROLLBACK}

    def answer(checks: Sequence[Check], tell: Tell) -> None:
        for check in checks:
            tell(check, answers[check.transaction_id])

    running = Running(worker_of(twin, answer, PullConfig()))
    await wait_states(bridge, group, "ROLLED_BACK", "COMMITTED")
    await running.stop()
    assert bridge.read_values("line").count(group.encode()) == 1
    assert b"lost" not in bridge.read_values("line")


async def test_group_must_be_in_pull_mode(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """A worker that could never get a check says so when it starts."""
    put_group(bridge, group, mode="push")
    worker = worker_of(make_twin(bridge.url, group), lambda _, __: None)
    with pytest.raises(NotPullMode):
        await run_once(worker)
    with pytest.raises(NotPullMode):
        await Running(worker).ended


async def test_failing_answer_is_left_out_and_comes_again(
    bridge: SocketBridge, make_twin: MakeTwin, group: str
) -> None:
    """What was told before the error counts; the rest uses up no check."""
    put_group(bridge, group)
    twin = make_twin(bridge.url, group)
    await prepare(twin, b"1", b"2")
    asked: list[tuple[str, int]] = []

    def answer(checks: Sequence[Check], tell: Tell) -> None:
        for check in checks:
            asked.append((check.transaction_id, check.check_number))
            tell(check, Resolution.ROLLBACK)
            if len(asked) == 1:
                raise ZeroDivisionError

    running = Running(worker_of(twin, answer))
    await wait_states(bridge, group, "ROLLED_BACK", "ROLLED_BACK")
    await running.stop()
    assert {number for _, number in asked} == {1}


async def test_answer_that_hangs_holds_nobody_up_at_the_end(bridge: SocketBridge, group: str) -> None:
    """Its check is free again for others, and a stop is heard."""
    put_group(bridge, group)
    release, calls = threading.Event(), []

    def answer(checks: Sequence[Check], _: Tell) -> None:
        calls.append(len(checks))
        assert release.wait(60)

    with Bridge(bridge.url, group) as face:
        await asyncio.to_thread(face.prepare, Message("line", value=b"hanging"))
        running = Running(face.pull_worker(answer, config=SHORT))
        await asyncio.to_thread(wait_until, lambda: bool(calls), name="a check")
        path = f"/v1/producer-groups/{group}/checks/claim"
        claimed = await asyncio.to_thread(bridge.post_json, path, {"wait_seconds": 15, "lease_seconds": 1})
        assert len(claimed["checks"]) == 1
        await running.stop()
        release.set()
    assert calls == [1]


async def test_late_answer_is_counted_and_forgotten(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """The producer's own end came first, and stands."""
    put_group(bridge, group)
    twin = make_twin(bridge.url, group)
    await prepare(twin, b"ended")

    def answer(checks: Sequence[Check], tell: Tell) -> None:
        for check in checks:
            tell(check, Resolution.ROLLBACK)
            bridge.post_json(f"/v1/transactions/{check.transaction_id}/commit", {})

    worker = worker_of(twin, answer)
    counts = await run_once(worker)
    while counts.claimed == 0:
        counts = await run_once(worker)
    assert (counts.claimed, counts.answered, counts.late, counts.failed) == (1, 0, 1, 0)
    assert bridge.states_of(group) == ["COMMITTED"]


async def test_closed_bridge_ends_its_worker(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """Without a stop: nothing can be asked any more."""
    put_group(bridge, group)
    twin = make_twin(bridge.url, group)
    running = Running(worker_of(twin, lambda _, __: None))
    await twin.do("close")
    await running.ended


async def test_listener_answers_fetched_checks(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """As it answers those that are sent."""
    put_group(bridge, group)

    twin = make_twin(bridge.url, group, check=lambda _: LocalTransactionState.COMMIT_MESSAGE)
    await prepare(twin, b"listened")
    face: Any = twin.face
    running = Running(face.pull_worker(face.answer, config=SHORT))
    await wait_states(bridge, group, "COMMITTED")
    await running.stop()


async def test_record_answers_fetched_checks(bridge: SocketBridge, group: str, tmp_path: Path) -> None:
    """Written: COMMIT. Missing: barred, then ROLLBACK."""
    put_group(bridge, group)
    record = TransactionRecord(make_record_table(sa.MetaData()))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    record.table.metadata.create_all(engine)
    with Bridge(bridge.url, group) as face:
        written = await asyncio.to_thread(face.prepare, Message("line", value=b"recorded"))
        await asyncio.to_thread(face.prepare, Message("line", value=b"unrecorded"))
        with orm.Session(engine) as session:
            record.write(session, written.transaction_id, group)
            session.commit()
        running = Running(face.pull_worker(record.answers(engine), config=SHORT))
        await wait_states(bridge, group, "ROLLED_BACK", "COMMITTED")
        await running.stop()
    engine.dispose()


@pytest.mark.parametrize(
    "wrong", [{"lease_s": 15.0}, {"lease_s": 4_000.0}, {"wait_s": 11.0}, {"max_checks": 1_001}, {"min_pause_s": 60.0}]
)
def test_impossible_bounds_are_refused(wrong: dict[str, Any]) -> None:
    """When they are made."""
    with pytest.raises(OutboxConfigError):
        PullConfig(**wrong)
