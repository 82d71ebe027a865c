"""Back-checks of a whole bridge, answered by a producer's listener."""

import asyncio
import json
from datetime import datetime
from typing import Any

from checker.call import EndpointCall
from outbox import HalfMessage, LocalTransactionState, Message
from tests.support.bridge_process import wait_until
from tests.support.check_fakes import Response
from tests.support.sdk_messages import Asked
from tests.support.sdk_twins import MakeTwin
from tests.support.socket_bridge import SocketBridge


def read_call(body: bytes) -> list[Asked]:
    call = json.loads(body)
    return [
        Asked(
            check["transaction_id"], call["producer_group"], check["check_number"], check["nonce"],
            round(datetime.fromisoformat(check["born_time"]).timestamp() * 1000), check["idempotency_key"],
            check["messages"],
        )
        for check in call["checks"]
    ]  # fmt: skip


async def test_listener_decides_what_its_send_left_open(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """UNKNOWN at first, then the bridge asks, and what the listener answers is done."""
    loop = asyncio.get_running_loop()
    seen: list[HalfMessage] = []

    def check(half: HalfMessage) -> LocalTransactionState:
        seen.append(half)
        return LocalTransactionState.COMMIT_MESSAGE if half.key == b"yes" else LocalTransactionState.ROLLBACK_MESSAGE

    twin = make_twin(bridge.url, group, execute=lambda *_: None, check=check)

    async def answer(call: EndpointCall) -> Response:
        asked = asyncio.run_coroutine_threadsafe(twin.do("answer_checks", read_call(call.body), 4.0), loop)
        answers = await asyncio.wrap_future(asked)
        resolutions = [
            {"transaction_id": a.transaction_id, "nonce": a.nonce, "resolution": a.resolution.name} for a in answers
        ]
        return Response(200, json.dumps({"resolutions": resolutions}).encode())

    url = f"https://{group}.example/check"
    bridge.endpoints[url] = answer
    settings = {"transaction_timeout_seconds": 1, "interval_seconds": 1}
    await asyncio.to_thread(
        bridge.put_json, f"/v1/producer-groups/{group}", {"endpoints": [{"url": url}], "check": settings}
    )
    kept, dropped = [
        await twin.do("send_message_in_transaction", Message("orders", key=key, value={"group": group}))
        for key in ("yes", "no")
    ]
    await asyncio.to_thread(wait_until, lambda: sorted(bridge.states_of(group)) == ["COMMITTED", "ROLLED_BACK"])
    assert {half.transaction_id for half in seen} == {kept.transaction_id, dropped.transaction_id}
    assert {(half.producer_group, half.check_number, half.messages[0].json()["group"]) for half in seen} == {
        (group, 1, group)
    }


async def test_answers_are_told_one_by_one(bridge: SocketBridge, make_twin: MakeTwin, group: str) -> None:
    """As a check handler takes them."""
    told: list[Any] = []
    twin = make_twin(bridge.url, group, check=lambda _: LocalTransactionState.COMMIT_MESSAGE)
    asked = [Asked(f"t{n}") for n in range(3)]
    await twin.do("answer", asked, lambda check, resolution: told.append((check.transaction_id, resolution.name)))
    assert sorted(told) == [("t0", "COMMIT"), ("t1", "COMMIT"), ("t2", "COMMIT")]
