"""One request of the hot path on its connection; stands where uvicorn's cycle of request and response does."""

import asyncio
from http import HTTPStatus
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from api.byte_budget import Lease
from api.hot_path import HotAnswer, HotCall, HotPath

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus if status >= 200
}


class Connection(Protocol):
    """What a cycle needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl

    def default_head(self) -> bytes:
        """Header lines of every answer."""
        ...

    def on_response_complete(self) -> None:
        """The next request may be served."""
        ...


class HotCycle:
    """Collects the body, answers. The names without a comment are those that uvicorn's protocol looks at."""

    def __init__(
        self, call: HotCall, headers: list[tuple[bytes, bytes]], connection: Connection, *, keep_alive: bool
    ) -> None:
        self.pieces: list[bytes] = []  # of the body
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.disconnected = False
        self._call = call
        self._headers = headers
        self._connection = connection

    @property
    def message_event(self) -> "HotCycle":
        """Not kept: a cycle of references would wait for the garbage collector, with the body in it."""
        return self

    def set(self) -> None:
        """Nobody waits for more of the body."""

    async def run(self, hot_path: HotPath, lease: Lease) -> None:
        """Answers the request, which is whole."""
        body = b"".join(self.pieces)
        self.pieces.clear()  # the connection keeps the cycle until its next request
        answer = await hot_path.answer(self._call, self._headers, body, lease)
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        self.response_started = self.response_complete = True
        if self.disconnected:
            return
        connection.transport.write(self._encode(answer))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def _encode(self, answer: HotAnswer) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in answer.headers]
        if ("Connection", "close") in answer.headers:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append("connection: close\r\n")
        head = f"{''.join(lines)}content-length: {len(answer.body)}\r\n\r\n"
        return b"".join((_STATUS_LINES[answer.status], self._connection.default_head(), head.encode(), answer.body))
