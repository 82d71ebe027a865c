"""The API on a real socket, in the loop of the test."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx2
from fastapi import FastAPI

from api.web.app import create_app
from api.web.guard import MARK
from api.web.request import Services
from api.web.server import ApiServer, ServeConfig
from tests.support.authority import Authority
from tests.support.documented import Documented

HOST = "127.0.0.1"
NAME = "a"  # also of the server, and short to write
_DOCUMENTED: dict[str, Documented] = {}
usual_authority: Authority | None = None  # signs for servers that name none


@dataclass(frozen=True, slots=True)
class LiveServer:
    """Where it listens, and a client for it."""

    port: int
    client: httpx2.AsyncClient
    server: ApiServer
    stop: asyncio.Event
    tls: ssl.SSLContext | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, secured where the server is."""
        return await asyncio.open_connection(HOST, self.port, ssl=self.tls)

    async def send_raw(self, request: bytes, *, half_close: bool = False) -> bytes:
        """Sends bytes as they are; everything that comes back until the server closes the connection."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            if half_close:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()


@asynccontextmanager
async def serve(
    services: Services, config: ServeConfig | None = None, authority: Authority | None = None
) -> AsyncIterator[LiveServer]:
    """Serves until the block ends, then drains. Every answer the client gets is held against the document.

    `authority`: signs what a secured server shows, if the configuration does not say that.
    """
    app = create_app(services)
    config = config or ServeConfig(host=HOST, port=0)
    authority = authority or usual_authority
    tls = None if authority is None else authority.client()
    if authority is not None and config.certificates is None:
        config = replace(config, certificates=authority.certificates())
    server = ApiServer(app, replace(config, allowed_hosts=(*config.allowed_hosts, NAME)))
    stop = asyncio.Event()
    serving = asyncio.ensure_future(server.serve_until(stop))
    try:
        await asyncio.wait_for(server.wait_started(), 10)
        async with httpx2.AsyncClient(
            base_url=f"http{'s' if server.is_secured else ''}://{HOST}:{server.port}",
            verify=tls or False,
            headers={MARK: "1"},
            timeout=20,
            event_hooks={"response": [_documented(app).check]},
        ) as client:
            yield LiveServer(server.port, client, server, stop, tls)
    finally:
        stop.set()
        await serving


def _documented(app: FastAPI) -> Documented:
    """The document is the same for every application."""
    if "document" not in _DOCUMENTED:
        _DOCUMENTED["document"] = Documented(app.openapi())
    return _DOCUMENTED["document"]
