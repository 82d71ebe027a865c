"""Prepares with nothing rare about them take a shorter way, with the same records and answers."""

import asyncio
import random
from pathlib import Path

import pytest

from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.core.message import BY_KEY, Message, StoredMessage
from bridge.node import Node
from bridge.service.contract import PrepareCall
from bridge.service.prepare import PrepareAnswer, Preparer
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
    monkeypatch.setattr(Preparer, "_are_plain", lambda *_: False)
    assert _run(seed, tmp_path / "general") == short


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
