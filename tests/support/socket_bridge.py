"""The whole bridge on the in-memory log, in real time and behind a real socket, in a thread of its own.

with socket_bridge(folder, {"orders": 3}) as bridge:
    bridge.url, bridge.read_values("orders")
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2

from api.web.server import ApiServer, ServeConfig
from bridge.clock import SystemClock
from bridge.core.message import StoredMessage
from bridge.service.access import AccessConfig
from tests.support.virtual_time import VirtualClock
from tests.support.whole_bridge import WholeBridge


class SocketBridge(WholeBridge):
    """Of the methods of a WholeBridge, those that move a clock are not for it."""

    def __init__(
        self, folder: Path, topics: Mapping[str, int], reports: Path | None = None, access: AccessConfig | None = None
    ) -> None:
        # the machine's clock has all that the bridge needs
        super().__init__(folder, topics, clock=cast("VirtualClock", SystemClock()), reports=reports, access=access)
        self._server = ApiServer(self._bridge.app, ServeConfig(port=0))
        self._stopping = asyncio.Event()
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.port}"

    def read_messages(self, topic: str) -> list[StoredMessage]:
        """What committed readers find in a topic now, queue by queue."""
        return self._in_loop(lambda: self.memory.read_visible(topic))

    def read_values(self, topic: str) -> list[bytes | None]:
        """The same, values alone."""
        return [message.value for message in self.read_messages(topic)]

    def delete_topic(self, name: str) -> None:
        """Somebody deletes a topic behind the bridge's back."""
        self._in_loop(lambda: self.memory.cluster.log.delete_topic(name))

    def states_of(self, group: str) -> list[str]:
        """States of all transactions of a group, newest first; lists are told of the latest writes by a 404."""
        for queue_id in range(self.memory.topics.queues):
            assert httpx2.get(f"{self.url}/v1/transactions/{queue_id:02}{'7' * 25}0", timeout=20).status_code == 404
        listed = self.get_json(f"/v1/transactions?producer_group={group}&limit=500")["transactions"]
        return [transaction["state"] for transaction in listed]

    def get_json(self, target: str) -> Any:
        """What a GET answers."""
        answer = httpx2.get(self.url + target, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post_json(self, target: str, document: object) -> Any:
        """What a POST answers."""
        return self._send("POST", target, document)

    def put_json(self, target: str, document: object) -> Any:
        """What a PUT answers."""
        return self._send("PUT", target, document)

    def _send(self, method: str, target: str, document: object) -> Any:
        answer = httpx2.request(method, self.url + target, json=document, timeout=20)
        assert answer.status_code in {200, 201, 202}, answer.text
        return answer.json()

    def run(self) -> None:
        """Serves until `stop`; for a thread."""
        self._runner.run(self._serve())
        self._runner.close()
        self._database.dispose()

    def wait_ready(self) -> None:
        """Returns when calls are taken."""
        assert self._is_ready.wait(20)

    def stop(self) -> None:
        """Drains and ends."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _in_loop(self, look: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return look()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._bridge.start()
        serving = asyncio.create_task(self._server.serve_until(self._stopping))
        await self._server.wait_started()
        self._is_ready.set()
        await serving
        await self._bridge.stop()


@contextmanager
def socket_bridge(
    folder: Path, topics: Mapping[str, int], reports: Path | None = None, access: AccessConfig | None = None
) -> Iterator[SocketBridge]:
    """A running one."""
    bridge = SocketBridge(folder, topics, reports, access)
    thread = threading.Thread(target=bridge.run, name="socket-bridge")
    thread.start()
    try:
        bridge.wait_ready()
        yield bridge
    finally:
        bridge.stop()
        thread.join(30)
        assert not thread.is_alive()
