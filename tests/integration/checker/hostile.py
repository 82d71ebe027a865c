"""A server of raw sockets that does what a test tells it to, and notes what came."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

CERT = Path(__file__).parent / "certs" / "shop.example.pem"  # valid for shop.example alone, signed by itself
OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HostileServer:
    """`requests`: heads as they came; `closed`: one token for each connection the client has closed."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.requests: list[bytes] = []
        self.closed: asyncio.Queue[None] = asyncio.Queue()
        self.port = 0

    async def start(self, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._serve, host, 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                await self._behaviour(reader, writer)
                await reader.read()  # until the client closes
            self.closed.put_nowait(None)
        finally:
            self._connections.discard(task)
            writer.transport.abort()  # also what nobody reads


def sending(*parts: bytes) -> Behaviour:
    """Sends the parts and leaves the connection open."""

    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()

    return behaviour


def repeating(head: bytes, part: bytes, pause_s: float = 0.0) -> Behaviour:
    """Sends the head, then the part for ever."""

    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return behaviour


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes instead of answering."""
    writer.close()


def answering(body: bytes) -> Behaviour:
    """A well-behaved answer."""
    return sending(OK_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def server_context() -> ssl.SSLContext:
    """TLS with the certificate of shop.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERT)
    return context


def trusting_context() -> ssl.SSLContext:
    """A client that trusts that certificate."""
    context = ssl.create_default_context()
    context.load_verify_locations(CERT)
    return context
