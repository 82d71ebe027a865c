"""The least HTTP client that can load a server: one connection, prepared bytes out, status and body back."""

import asyncio
import json
from typing import Any, Self


class Connection:
    """One keep-alive connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, key: str | None) -> None:
        host = f"Host: 127.0.0.1:{port}\r\n"
        self._head = host if key is None else f"{host}Authorization: Bearer {key}\r\n"
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, key: str | None = None) -> Self:
        """Connects to loopback. `key`: sent with every request."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024), port, key)

    async def post(self, path: str, body: bytes, headers: str = "", method: str = "POST") -> tuple[int, bytes]:
        """Status and body of the answer. `headers`: whole lines."""
        head = (
            f"{method} {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        lower = answer.lower()
        start = lower.index(b"content-length:") + 15
        length = int(lower[start : lower.index(b"\r\n", start)])
        return status, await self._reader.readexactly(length) if length else b""

    async def post_ok(self, path: str, body: bytes) -> Any:
        """The decoded answer. Raises RuntimeError for anything but 2xx."""
        status, answer = await self.post(path, body)
        if not 200 <= status < 300:
            raise RuntimeError(f"{path}: {status} {answer[:500]!r}")
        return json.loads(answer)

    async def commit(self, transaction_id: str, *, is_awaited: bool = True) -> None:
        """Commits; until it is settled, or only until it is durable. Raises RuntimeError for anything else."""
        prefer = "" if is_awaited else "Prefer: respond-async\r\n"
        status, answer = await self.post(f"/v1/transactions/{transaction_id}/commit", b"", prefer)
        if status != (200 if is_awaited else 202):
            raise RuntimeError(f"commit: {status} {answer[:500]!r}")

    def close(self) -> None:
        """Ends the connection."""
        self._writer.close()
