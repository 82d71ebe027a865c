"""Documents of token issuers, read over HTTPS."""

from urllib.parse import urlsplit

import httpx2

from api.web.guard import is_loopback
from bridge.service.issuers import IssuerAway

_TIMEOUT_S = 5.0
_MOST_BYTES = 256 * 1024


def is_safe(url: str) -> bool:
    """Whether what comes from there can be believed: over TLS, or from this machine."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        return bool(parts.hostname) and (parts.scheme == "https" or is_local)
    except ValueError:
        return False


async def fetch_document(url: str) -> bytes:
    """At most 256 KiB, in 5 s, without following a redirect. Raises IssuerAway."""
    if not is_safe(url):
        raise IssuerAway(f"{url[:200]} is not https")
    found = bytearray()
    try:
        async with (
            httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client,
            client.stream("GET", url, headers={"Accept": "application/json"}) as answer,
        ):
            if answer.status_code != httpx2.codes.OK:
                raise IssuerAway(f"{url} answered {answer.status_code}")
            async for piece in answer.aiter_bytes():
                found += piece
                if len(found) > _MOST_BYTES:
                    raise IssuerAway(f"{url} answered more than {_MOST_BYTES} bytes")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise IssuerAway(f"{url}: {error or type(error).__name__}") from error
    return bytes(found)
