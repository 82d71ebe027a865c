"""Newline-delimited JSON in and out: any number of lines with bounded memory, answered as they come.

A stream takes no place of a request, and may pause between lines as long as there is room for it; a line that has
begun must be whole as soon as a body must.

A client that sends more than its and our socket buffers hold must read while it sends: the bridge does not
collect answers, goes on reading only when they are taken, and ends the connection of one that never takes any.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from starlette.types import Receive, Scope, Send

from api.web.limits import HttpLimits, Stream, too_large
from api.web.problems import Problem, Rejected
from api.web.request import NDJSON, ApiRequest, problem_item

MAX_LINES = 1_000

Line = bytes | Problem
AnswerLines = Callable[[Sequence[Line]], Awaitable[list[bytes]]]
TellHeaders = Callable[[], Sequence[tuple[str, str]]]


class LinesAnswer:
    """Answers a request line by line. `answer` gets the lines that have come, and gives one result for each; `tell`:
    headers of what is known when the answer begins."""

    def __init__(self, request: ApiRequest, answer: AnswerLines, tell: TellHeaders = tuple) -> None:
        self._request = request
        self._answer = answer
        self._tell = tell

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """The answer begins with the first results, so that a request without a body can still be refused."""
        with self._request.traffic.streams.open() as stream:
            self._request.leave()
            await self._answer_all(stream, send)

    async def _answer_all(self, stream: Stream, send: Send) -> None:
        is_begun = False
        try:
            async for lines in read_lines(self._request, stream):
                results = b"\n".join([*await self._answer_proven(lines), b""])
                del lines  # not while the next ones are awaited
                if not is_begun:
                    is_begun = True
                    await self._begin(send)
                await send({"type": "http.response.body", "body": results, "more_body": True})
        except Rejected as rejected:
            if not is_begun:
                raise
            last = problem_item(rejected.problem, self._request.request_id)
            await send({"type": "http.response.body", "body": last + b"\n", "more_body": True})
        if not is_begun:
            await self._begin(send)
        await send({"type": "http.response.body"})

    async def _answer_proven(self, lines: Sequence[Line]) -> list[bytes]:
        """Raises Rejected once the caller may go on no more."""
        request = self._request
        if (problem := request.prove_again()) is not None:
            raise Rejected(problem)
        if request.usage is not None:
            request.usage.charge_lines()
        return await self._answer(lines)

    async def _begin(self, send: Send) -> None:
        headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
        headers += [(name.lower().encode(), value.encode()) for name, value in self._tell()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def read_lines(request: ApiRequest, stream: Stream) -> AsyncIterator[list[Line]]:
    """Lines in lists, as they come; empty ones are skipped, one that is too long is a problem in its place."""
    limits, loop = request.services.limits, asyncio.get_running_loop()
    splitter = LineSplitter(limits)
    deadline: float | None = None  # of the line that has begun
    is_read, is_answered = False, True
    while not is_read:
        if is_answered and (pause_s := request.find_pause_s()):  # also where the next line has begun
            await stream.wait(partial(asyncio.sleep, pause_s), None)  # whose time begins afterwards
        if not splitter.is_inside:
            deadline = None
        elif deadline is None:
            deadline = loop.time() + limits.receive_s
        chunk, is_read = request.take_chunk(await stream.wait(request.receive, deadline))
        is_answered = b"\n" in chunk
        if is_answered:
            deadline = None
        held = splitter.held + len(chunk)
        lines = splitter.feed(chunk)
        del chunk
        if lines:
            stream.note_lines()
        for start in range(0, len(lines), MAX_LINES):
            yield lines[start : start + MAX_LINES]
        del lines  # answered: their bytes are free for others
        request.lease.shrink(held - splitter.held)
    if rest := splitter.finish():
        stream.note_lines()
        yield rest


class LineSplitter:
    """Cuts a stream into lines. Holds at most one line."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._rest = bytearray()
        self._is_skipping = False

    @property
    def held(self) -> int:
        """Bytes of the line that has no end yet."""
        return len(self._rest)

    @property
    def is_inside(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rest) or self._is_skipping

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that are complete now."""
        first, *others = chunk.split(b"\n")
        lines: list[Line] = []
        self._collect(first, lines)
        for piece in others:
            self._end_line(lines)
            self._collect(piece, lines)
        return lines

    def finish(self) -> list[Line]:
        """The last line, if it had no end."""
        lines: list[Line] = []
        self._end_line(lines)
        return lines

    def _collect(self, piece: bytes, lines: list[Line]) -> None:
        if self._is_skipping:
            return
        self._rest += piece
        if len(self._rest) > self._limits.body_bytes:
            self._rest.clear()
            self._is_skipping = True
            lines.append(too_large(self._limits).problem)

    def _end_line(self, lines: list[Line]) -> None:
        self._is_skipping = False
        line = bytes(self._rest).rstrip(b"\r")
        self._rest.clear()
        if line.strip(b" \t"):
            lines.append(line)
