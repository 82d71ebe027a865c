"""Prepares with nothing rare about them take a shorter way, with the same records and answers."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.core.grants import Grant, Rights, Verb
from bridge.core.message import BY_KEY, Message, StoredMessage
from bridge.directory import DEFAULT_SETTINGS
from bridge.node import Node
from bridge.service.contract import PrepareCall
from bridge.service.journal import Deadline
from bridge.service.prepare import PrepareAnswer
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import make_service_world

SEEDS = range(40)


def make_calls(draw: random.Random) -> list[PrepareCall]:
    """A list of calls of which most could go the short way."""
    is_rare = draw.random() < 0.3
    return [_make_call(draw, is_rare=is_rare and draw.random() < 0.3) for _ in range(draw.choice((1, 1, 3, 12)))]


def _make_call(draw: random.Random, *, is_rare: bool) -> PrepareCall:
    messages = [_make_message(draw) for _ in range(draw.choice((1, 3)) if is_rare else 1)]
    return PrepareCall(
        draw.choice(("shop", "shop", "slow", "new", "no name") if is_rare else ("shop", "shop", "slow")),
        messages,
        draw.choice((None, None, "o", "ö")),
        immunity_s=draw.choice((None, None, 3, 60)),
        max_checks=draw.choice((None, None, 2)),
        max_lifetime_s=draw.choice((None, None, 100)),
    )


def _make_message(draw: random.Random) -> Message:
    return Message(
        draw.choice(("orders", "orders", "orders", "nowhere")),
        draw.choice((None, b"", b"k", b"\xff")),
        draw.choice((None, b"", b"value")),
        draw.choice(((), [("h", b"v"), ("h", None)])),
        draw.choice((BY_KEY, 0, 7)),
        draw.choice((None, None, -1, 1_700_000_000_000)),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_short_and_general_way_are_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random lists, with random fates of their puts, in two worlds that differ in nothing else."""
    short = _run(seed, tmp_path / "short")
    assert _run(seed, tmp_path / "alone", is_alone=True) == short
    monkeypatch.setattr("bridge.service.prepare._is_plain", lambda _: False)
    assert _run(seed, tmp_path / "general") == short


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_of_a_list_are_admitted_as_each_alone(seed: int, tmp_path: Path) -> None:
    """What is looked at once for those of one group and topic says nothing of what they do not have in common."""
    draw, world = random.Random(seed), make_service_world(tmp_path, queues=2)
    world.settlers.memory.cluster.log.create_topic("small", 2, {"max.message.bytes": "1000"})
    world.settlers.memory.cluster.log.create_topic("compacted", 2, {"cleanup.policy": "compact"})
    rights = Rights([Grant(Verb.PREPARE, "shop"), Grant(Verb.PREPARE, "slow", "orders")])

    async def story() -> None:
        async with world.serving() as api:
            prepare: Any = api.transactions.prepare
            admission, deadline = prepare.__self__.admission, Deadline.after(api.backing.clock, 10_000)
            for group in ("shop", "slow"):
                await api.directory.put_group(group, GroupSettings(), [])
            for _ in range(20):
                calls = [_make_odd_call(draw) for _ in range(draw.choice((2, 5, 20)))]
                told = await admission.refuse(calls, rights, deadline, DEFAULT_SETTINGS)
                for call, refused in zip(calls, told, strict=True):
                    assert [refused] == [*await admission.refuse([call], rights, deadline, DEFAULT_SETTINGS)]

    world.run(story())


def _make_odd_call(draw: random.Random) -> PrepareCall:
    """One that most often can be taken."""

    def choose(usual: Any, *odd: Any) -> Any:
        return usual if draw.random() < 0.97 else draw.choice(odd)

    topic = draw.choice(("orders", "orders", "small", "compacted"))
    headers = choose([("h", b"v")], [("properties", b"")], [("a\0", b"")], [("\ud800", b"")], [("h", bytes(900))])
    value = choose(b"value", None, bytes(880), bytes(2_000_000))
    message = Message(topic, choose(b"k", None), value, headers, choose(BY_KEY, 1, 7), choose(None, -1))
    group, key = choose("shop", "slow", "no group"), choose("key", None, "", "ö", "k" * 201)
    return PrepareCall(group, choose([message], [message] * 2, []), choose(None, "o", "\x01"), key)


async def prepare(api: Node, calls: list[PrepareCall]) -> list[PrepareAnswer]:
    return await api.transactions.prepare(calls, 500)


async def begin_or_prepare(api: Node, calls: list[PrepareCall]) -> list[PrepareAnswer]:
    """A call that is alone is begun without a task, if it can be."""
    told: asyncio.Future[PrepareAnswer] = asyncio.get_running_loop().create_future()
    if len(calls) == 1 and api.transactions.begin_prepare(calls[0], 500, told.set_result):
        return [await told]
    return await prepare(api, calls)


def _run(seed: int, folder: Path, *, is_alone: bool = False) -> tuple[list[PrepareAnswer], list[StoredMessage]]:
    folder.mkdir()
    draw, faults = random.Random(seed), ScriptedFaults()
    world = make_service_world(folder, queues=2, faults=faults)
    answers: list[PrepareAnswer] = []
    records: list[StoredMessage] = []

    async def story() -> None:
        async with world.serving() as api:
            await api.directory.put_group("slow", GroupSettings(CheckTimes(transaction_timeout_ms=8_500)), [])
            for _ in range(6):
                if draw.random() < 0.2:
                    faults.give(StepKind.PUT, Fate(request_ms=draw.choice((1, 300, 900))))
                calls = make_calls(draw)
                answers.extend(await (begin_or_prepare if is_alone else prepare)(api, calls))
                await asyncio.sleep(0)
            await world.sleep(2_000)
            for queue_id in range(2):
                records.extend(await world._read_journal(queue_id))

    world.run(story())
    return answers, records
