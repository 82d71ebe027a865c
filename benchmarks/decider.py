"""`python -m benchmarks.decider PORT`: a check endpoint that commits everything; and calls of one, without a bridge."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

import aiohttp
from aiohttp import web

from bridge.broker.ports import choose_free_port

GROUP = "due"
_CALLS_AT_ONCE = 8  # as many as the bridge may make for a group
_BATCH = 100


async def _decide(request: web.Request) -> web.Response:
    checks = (await request.json())["checks"]
    answers = [
        {"transaction_id": check["transaction_id"], "nonce": check["nonce"], "resolution": "COMMIT"} for check in checks
    ]
    return web.json_response({"resolutions": answers})


@contextmanager
def running_decider() -> Iterator[str]:
    """The URL of an endpoint in a process of its own."""
    port = choose_free_port()
    process = Popen([sys.executable, "-m", "benchmarks.decider", str(port)], stdout=PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        yield f"http://127.0.0.1:{port}/check"
    finally:
        process.terminate()
        process.wait(10)


async def measure_bare_calls(url: str, checks: int, value: str) -> float:
    """Checks a second when somebody makes the same calls and does nothing with the answers."""
    body = _make_body(value)
    left = checks // _BATCH
    began = time.perf_counter()

    async def call(session: aiohttp.ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as reply:
                answered = json.loads(await reply.read())["resolutions"]
                assert len(answered) == _BATCH

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        for _ in range(_CALLS_AT_ONCE):
            tasks.create_task(call(session))
    return checks / (time.perf_counter() - began)


def _make_body(value: str) -> bytes:
    message = {"topic": "bench.due", "key": "1", "value": value, "headers": []}
    check = {
        "transaction_id": "0" * 28,
        "check_number": 1,
        "nonce": "n" * 40,
        "born_time": "2026-01-01T00:00:00.000Z",
        "idempotency_key": None,
        "messages": [message],
    }
    return json.dumps({"type": "transaction.check", "producer_group": GROUP, "checks": [check] * _BATCH}).encode()


async def _serve(port: int) -> None:
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/check", _decide)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
