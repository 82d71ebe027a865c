"""Exchanges with the bridge over pooled connections, each within its time, however slowly bytes come."""

import asyncio
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime

import httpx2

from outbox.client.calls import JSON, Request
from outbox.client.config import HttpConfig
from outbox.client.replies import Answer, NoReply

MAX_ANSWER_BYTES = 64 * 1024 * 1024

# the bridge has certainly not seen a request that failed so
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class Transport:
    """Connections of one event loop to one bridge."""

    def __init__(self, url: str, config: HttpConfig) -> None:
        self._url = url
        self._client = httpx2.AsyncClient(
            headers=_headers(config.headers),
            verify=_verify(url, config),
            trust_env=config.trust_env,
            follow_redirects=False,
            # the exchange as a whole has a limit of its own
            timeout=httpx2.Timeout(None, connect=config.connect_timeout_s, pool=config.connect_timeout_s),
            limits=httpx2.Limits(
                max_connections=config.max_connections,
                max_keepalive_connections=config.max_connections,
                keepalive_expiry=config.keep_alive_s,
            ),
        )

    async def exchange(self, request: Request, timeout_s: float) -> Answer | NoReply:
        """One request and its whole answer; never raises for what happens on the way."""
        headers = {} if request.method == "GET" else {"Content-Type": JSON}
        try:
            built = self._client.build_request(
                request.method, self._url + request.target, content=request.body, headers=headers
            )
            async with asyncio.timeout(timeout_s):
                return await self._read(built)
        except NOT_SENT as error:
            return NoReply(f"not reachable: {type(error).__name__}", is_sent=False)
        except TimeoutError:
            return NoReply(f"no answer within {timeout_s:.1f} s")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return NoReply(f"the connection broke: {type(error).__name__}")

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def _read(self, built: httpx2.Request) -> Answer | NoReply:
        response = await self._client.send(built, stream=True)
        try:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    return NoReply(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            return Answer(response.status_code, bytes(body), response.headers.get("Retry-After"), datetime.now(UTC))
        finally:
            await response.aclose()


def _headers(own: Mapping[str, str]) -> dict[str, str]:
    return {"Accept": "application/json, application/problem+json", "User-Agent": "outbox-bridge-python", **own}


def _verify(url: str, config: HttpConfig) -> ssl.SSLContext | bool:
    """Loading certificates takes long, and plain HTTP needs none."""
    return config.ssl_context or url.startswith("https:")
