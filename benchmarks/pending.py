"""Transactions that nobody ends."""

import asyncio
import json
import math
import time
from collections.abc import Callable
from typing import Any

import httpx2

from benchmarks.http_client import Connection
from benchmarks.rounds import drive
from benchmarks.stage import Stage

SLEEPERS = "sleepers"
VALUE = "x" * 200
_BATCH = 1_000
_CONNECTIONS = 8
_DAY_S, _WEEK_S = 86_400, 604_800


def put_group(stage: Stage, name: str, body: dict[str, Any]) -> None:
    """Creates or replaces a producer group."""
    httpx2.put(f"http://127.0.0.1:{stage.ports[0]}/v1/producer-groups/{name}", json=body).raise_for_status()


def put_sleepers(stage: Stage) -> None:
    """The group whose transactions nobody is asked about for a day."""
    check = {"transaction_timeout_seconds": _DAY_S, "max_lifetime_seconds": _WEEK_S}
    put_group(stage, SLEEPERS, {"endpoints": [], "check": check})


def transaction(group: str, topic: str) -> dict[str, Any]:
    """A prepare of one message of 200 B."""
    return {"producer_group": group, "messages": [{"topic": topic, "key": "1", "value": VALUE}]}


def prepare_many(stage: Stage, topic: str, count: int, group: str = SLEEPERS, due_at: float | None = None) -> float:
    """Prepares so many, a thousand a call; seconds it took. `due_at`: when they are first asked about, about."""

    def make_body() -> bytes:
        one = transaction(group, topic)
        if due_at is not None:
            one["check_immunity_seconds"] = max(1, math.ceil(due_at - time.time()))
        return json.dumps({"transactions": [one] * _BATCH}).encode()

    began = time.perf_counter()
    drive(lambda: _post_all(stage, count // _BATCH, make_body))
    return time.perf_counter() - began


async def _post_all(stage: Stage, calls: int, make_body: Callable[[], bytes]) -> None:
    left = calls

    async def work(port: int) -> None:
        nonlocal left
        connection = await Connection.open(port)
        while left > 0:
            left -= 1
            answer = await connection.post_ok("/v1/transactions/batch", make_body())
            if any(result["status"] != 201 for result in answer["results"]):
                raise RuntimeError("a prepare was refused")
        connection.close()

    async with asyncio.TaskGroup() as tasks:
        for number in range(_CONNECTIONS):
            tasks.create_task(work(stage.ports[number % len(stage.ports)]))
