"""`python -m benchmarks.keys`: what a key costs on a real broker, with sockets, settler and projector.

Two api processes of one bridge, by turns: one that asks for no key, and one whose caller has a key with one group and
one topic. Printed is the CPU time of the api, and of the whole bridge, for a transaction.
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.load import Load, batch_body, load_mixed, load_singles
from benchmarks.outcome import tell
from benchmarks.stage import TOPIC, Shape, Stage, running_stage
from bridge.clock import SystemClock
from bridge.core.grants import Grant, Verb
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from bridge.service.access import AccessConfig, AccessService
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import Database

_BATCH_CONNECTIONS, _SINGLE_CONNECTIONS = 8, 64
_PARTS = ("api", "settler", "projector")

Loading = Callable[["Door", float], Coroutine[Any, Any, Load]]


class Door(NamedTuple):
    """Where an api listens, and what its caller sends."""

    port: int
    key: str | None


class Cost(NamedTuple):
    """Microseconds of CPU for a transaction."""

    api: float
    bridge: float


async def _load_batches(door: Door, seconds: float) -> Load:
    return await load_mixed([door.port], [batch_body([TOPIC], ["bench"])], _BATCH_CONNECTIONS, seconds, door.key)


async def _load_singles(door: Door, seconds: float) -> Load:
    return await load_singles([door.port], TOPIC, _SINGLE_CONNECTIONS, seconds, key=door.key)


async def _make_key(database_url: str) -> str:
    database, who = Database(database_url), Who("bench", "")
    access = AccessService(database, SystemClock(), AccessConfig(is_open=False))
    await access.put("bench", [Grant(Verb.PREPARE, "bench", TOPIC), Grant(Verb.DECIDE, "bench")], who)
    made = await access.make_key("bench", None, None, who)
    assert isinstance(made, MadeKey)
    await database.close()
    return made.text


def _measure(stage: Stage, door: Door, loading: Loading, seconds: float) -> Cost:
    done, used = stage.watch(lambda: asyncio.run(loading(door, seconds)))
    stage.settled += done.transactions
    stage.await_projection()
    cpu = {part: used.cpu[part] / done.transactions * 1e6 for part in _PARTS}
    return Cost(cpu["api"], sum(cpu.values()))


def _tell(name: str, found: Mapping[str, list[Cost]]) -> None:
    without, keyed = found["without"], found["with"]
    for place, part in enumerate(Cost._fields):
        ratios = sorted(b[place] / a[place] for a, b in zip(without, keyed, strict=True))
        medians = [statistics.median(cost[place] for cost in costs) for costs in (without, keyed)]
        middle = ratios[len(ratios) // 4 : -(len(ratios) // 4) or None]
        print(
            f"{name:<8} {part:<7} {medians[0]:6.1f} and {medians[1]:6.1f} us; ratio of a round "
            f"{statistics.median(ratios):.3f} (half of them {middle[0]:.3f}..{middle[-1]:.3f})",
            flush=True,
        )


def main() -> int:
    """Exit code 1: something was lost, or visible twice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keys", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=16, help="of each, by turns (default 16)")
    parser.add_argument("--seconds", type=float, default=4, help="of each load (default 4)")
    options = parser.parse_args()
    kinds: dict[str, Loading] = {"batches": _load_batches, "singles": _load_singles}
    found: dict[str, dict[str, list[Cost]]] = {name: {"without": [], "with": []} for name in kinds}
    with ExitStack() as stack:
        stage = stack.enter_context(running_stage(Shape(1, 1, 1)))
        key = asyncio.run(_make_key(stage.bridge.database_url))
        admin = make_key_text(os.urandom(RANDOM_BYTES))
        settings = {"OUTBOX_BRIDGE_INSECURE_NO_AUTH": "false", "OUTBOX_BRIDGE_AUTH__ADMIN_KEY": admin}
        keyed = stack.enter_context(stage.bridge.serve("api", **settings))
        stage.parts = {**stage.parts, "api": [*stage.parts["api"], keyed.popen.pid]}
        doors = {"without": Door(stage.ports[0], None), "with": Door(keyed.port, key)}
        for number in range(-1, options.rounds):
            tell("warming up" if number < 0 else f"round {number + 1} of {options.rounds}")
            for name, loading in kinds.items():
                for which in sorted(doors, reverse=number % 2 == 0):
                    cost = _measure(stage, doors[which], loading, options.seconds * (3 if number < 0 else 1))
                    if number >= 0:
                        found[name][which].append(cost)
        mistakes = stage.find_mistakes()
    for name, costs in found.items():
        _tell(name, costs)
    for mistake in mistakes:
        print(mistake)
    return 1 if mistakes else 0


if __name__ == "__main__":
    raise SystemExit(main())
