"""The API on a real socket, in the loop of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from api.app import create_app
from api.server import ApiServer, ServeConfig
from api.services import Services

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LiveServer:
    """Where it listens, and a client for it."""

    port: int
    client: httpx2.AsyncClient
    server: ApiServer
    stop: asyncio.Event

    async def send_raw(self, request: bytes, *, half_close: bool = False) -> bytes:
        """Sends bytes as they are; everything that comes back until the server closes the connection."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            writer.write(request)
            if half_close:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()


@asynccontextmanager
async def serve(services: Services) -> AsyncIterator[LiveServer]:
    """Serves until the block ends, then drains."""
    server = ApiServer(create_app(services), ServeConfig(host=HOST, port=0))
    stop = asyncio.Event()
    serving = asyncio.ensure_future(server.serve_until(stop))
    try:
        await asyncio.wait_for(server.wait_started(), 10)
        async with httpx2.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=20) as client:
            yield LiveServer(server.port, client, server, stop)
    finally:
        stop.set()
        await serving
