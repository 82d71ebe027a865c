"""uvicorn's HTTP/1.1 protocol with bounds on the head of a request, and problems instead of plain text."""

import asyncio
import secrets
import time
from typing import Any, ClassVar

import httptools
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.web.guard import ByteLease
from api.web.limits import ByteBudget, Streams
from api.web.problems import (
    CLOSE,
    HEADERS_TOO_LARGE,
    MALFORMED_REQUEST,
    REQUEST_TIMEOUT,
    UNAVAILABLE,
    URI_TOO_LONG,
    Problem,
    encode_problem,
    problem_headers,
)
from api.web.road import Road
from api.web.short_way import START, HotCycle, ShortWay
from api.web.transports import ClosingTransport, EndedTransport, HeldFlow, Lingering, Peer

_LOG = structlog.get_logger()

MAX_URL_BYTES = 8 * 1024
MAX_HEAD_BYTES = 16 * 1024
MAX_PIPELINED = 32
_HEAD_END = b"\r\n\r\n"
_UPGRADE_HEADERS = frozenset({b"upgrade", b"connection", b"http2-settings"})


class _HeadRefused(Exception):
    """Stops the parser inside a head."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. What cannot be a request is answered with a problem, and the connection is closed."""

    max_connections = 4_000
    idle: ClassVar[dict["BoundedProtocol", None]] = {}  # of one server, like the rest; idle longest first
    head_timeout_s = 5.0
    send_timeout_s = 30.0
    road: Road | None = None
    short_way: ShortWay | None = None
    budget = ByteBudget()
    streams = Streams(0)

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._is_in_head = True  # also before the first byte: a connection must say something
        self._head_bytes = 0  # as the parser reported them
        self._raw_bytes = 0  # as they came
        self._messages = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._refusal: Problem | None = None
        self._lease = ByteLease(self.budget)  # of the request whose body is being read
        self._hot: HotCycle | None = None  # while its body is being read
        self._sample = b""  # begins with the next head, which is unknown
        self._rested_at = 0.0  # a time of the loop: the last answer
        self._unread = b""  # received, and for the parser when earlier requests have been answered
        self._unread_at = 0
        self._ahead = ByteLease(self.budget)  # of what is unread
        self._lingering: Lingering | None = None
        self._certified: str | None = None  # the principal that a certificate names
        self._peer_timer: asyncio.TimerHandle | None = None
        self._flow: HeldFlow = None  # type: ignore[assignment]  # like the parent's, from connection_made on

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses a connection too many."""
        super().connection_made(transport)
        self.flow = self._flow = HeldFlow(transport)
        if len(self.connections) > self.max_connections and not self._make_room():
            self._write(Problem(UNAVAILABLE, "too many connections", retry_after_s=1))
            transport.close()
        else:
            self.idle[self] = None
            self._arm()

    def know(self, peer: Peer) -> None:
        """A certificate tells who calls, until it ends; it may have ended, where a session was taken up again."""
        left_s = peer.until_s - time.time()
        if left_s <= 0:
            return
        self._certified = peer.principal
        if self.short_way is not None:
            self.short_way = self.short_way.of(peer.principal)
        self._peer_timer = self.loop.call_later(left_s, self._forget_peer)

    def _forget_peer(self) -> None:
        self._certified, self.short_way = None, type(self).short_way
        if isinstance(self.cycle, RequestResponseCycle):  # of a request that lasts, such as a stream
            self.cycle.scope["state"]["certified"] = None

    def _make_room(self) -> bool:
        """Ends the connection that has been without a request longest, else a stream that waits for its next line:
        silence must not keep others out."""
        longest = next(iter(self.idle), None)
        if longest is None:
            return self.streams.make_room()
        del self.idle[longest]
        if longest.transport.get_write_buffer_size():
            longest.transport.abort()  # an answer that nobody takes
        else:
            longest.transport.close()
        return True

    @property
    def is_held(self) -> bool:
        """Whether nothing is read because requests wait for the answers of earlier ones."""
        return self._flow.is_held

    def connection_lost(self, exc: Exception | None) -> None:
        """The timers, and the requests that wait, die with the connection."""
        self._disarm()
        self._stop_send_timer()
        self.idle.pop(self, None)
        if self._peer_timer is not None:
            self._peer_timer.cancel()
        if self._lingering is not None:
            self._lingering.stop()
        self._unread = b""
        self._ahead.close()
        for cycle, _ in self.pipeline:
            cycle.scope["state"]["lease"].close()
            cycle.on_response = _nothing  # it leads back here: only a full garbage collection would free the two
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Reading goes on only when no request waits for the answer of another one."""
        if self._lingering is not None:
            self._lingering.discard(len(data))
            return
        if self.transport.is_closing():
            return
        if not self._unread and not self.pipeline and data.count(_HEAD_END) <= MAX_PIPELINED:
            if data.startswith(START) and self._begin_short(data):
                return
            self._parse(data)
            self._sample = b""
            if self.pipeline:
                self._flow.hold(is_held=True)
            return
        self._unread = self._unread[self._unread_at :] + data
        self._unread_at = 0
        if self._ahead.grow(len(data)):
            self._read_on()
        else:
            self._unread = b""
            self._close_with(Problem(UNAVAILABLE, "too many bytes of requests are being held", retry_after_s=1))

    def _begin_short(self, data: bytes) -> bool:
        """Whether the data is a whole request that goes the short way: then the parser never sees it."""
        earlier = self.cycle
        is_busy = self._raw_bytes or not self._is_in_head or not (earlier is None or earlier.response_complete)
        if self.short_way is None or is_busy or self._flow.write_paused:
            return False
        found = self.short_way.find(data)
        if found is None:
            self._sample = data
            return False
        self._disarm()
        self.idle.pop(self, None)
        self.cycle = hot = HotCycle(self, keep_alive=True)  # type: ignore[assignment]
        hot.more_body = False
        if self.short_way.begin(found, hot.finish):
            return True
        self.cycle = earlier
        return False

    def _read_on(self) -> None:
        """Hands on what was received, so many requests at a time as may wait."""
        while self._unread and not self.pipeline and not self.transport.is_closing():
            start, end = self._unread_at, _find_end(self._unread, self._unread_at)
            data = self._unread[start:end]
            self._ahead.shrink(end - start)
            if end == len(self._unread):
                self._unread, self._unread_at = b"", 0
            else:
                self._unread_at = end
            self._parse(data)
        self._flow.hold(is_held=bool(self.pipeline or self._unread))

    def _parse(self, data: bytes) -> None:
        """Counts bytes while a head is incomplete: the parser itself would collect without end."""
        was_in_head, messages = self._is_in_head, self._messages
        self._feed(data)
        if self._hot is not None:
            self._hand_to_framework(self._hot)
        if not self._is_in_head or self.transport.is_closing():
            return
        # what came with the end of another request is not counted: it is bounded by one read
        is_head_alone = was_in_head and self._messages <= messages + 1
        self._raw_bytes += len(data) if is_head_alone else 1
        if self._raw_bytes > 2 * MAX_HEAD_BYTES:
            self._close_with(Problem(HEADERS_TOO_LARGE, f"more than {MAX_HEAD_BYTES} bytes"))
        else:
            self._arm()

    def on_message_begin(self) -> None:
        """A new head begins."""
        if len(self.pipeline) > MAX_PIPELINED:
            self._refuse(Problem(UNAVAILABLE, f"more than {MAX_PIPELINED} requests behind one another"))
        self._messages += 1
        self._await_head()
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Bounds the request target."""
        self.url += url
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(Problem(URI_TOO_LONG, f"more than {MAX_URL_BYTES} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Bounds all headers together, trailers too: those are read for nothing else."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(Problem(HEADERS_TOO_LARGE, f"more than {MAX_HEAD_BYTES} bytes"))
        if not self._is_in_head:
            return
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The request is served from here on; one that offers to upgrade, when it has been read without its offer."""
        self._is_in_head = False
        self._disarm()
        self.idle.pop(self, None)
        if self.parser.should_upgrade():
            return
        self._lease = ByteLease(self.budget)
        self._hot = self._find_hot()
        self._sample = b""
        if self._hot is None:
            self._begin_cycle()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        is_kept = self._lease.grow(len(body))
        if self._hot is None:
            super().on_body(body if is_kept else b"")  # its waiter is answered in any case
        elif is_kept:
            self._hot.pieces.append(body)

    def on_message_complete(self) -> None:
        """A body that nobody wanted is over: the connection waits for the next request."""
        if self.parser.should_upgrade():
            return
        if self._hot is not None:
            self._run(self._hot)
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self._disarm()
            self._await_head()
            self._rest()

    def on_response_complete(self) -> None:
        """Keep-alive time runs from here; what is left of the body is thrown away, but not for ever."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.cycle.more_body:
            self._arm()
        elif not self.pipeline and not self._is_in_head:
            self._await_head()
        self._flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.idle[self] = None
            self._rest()
        if self._flow.is_held and not self.pipeline:
            self._read_on()

    def _rest(self) -> None:
        """One timer for many requests: it looks at what has come since."""
        self._rested_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._watch_rest(self.timeout_keep_alive)

    def _watch_rest(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Ends a connection that has rested for so long."""
        self.timeout_keep_alive_task = None
        if self not in self.idle or self._head_timer is not None:  # not at rest, or not for long
            return
        left_s = self._rested_at + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._watch_rest(left_s)
        elif not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        """A client that takes nothing of its answer for too long is cut off."""
        super().pause_writing()
        self._send_timer = self.loop.call_later(self.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_send_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called for whatever the parser does not take."""
        self._close_with(self._refusal or Problem(MALFORMED_REQUEST, "not HTTP/1.1 as RFC 9112 says"))

    def _find_hot(self) -> HotCycle | None:
        """The request as a hot one, if it is, and may be served now."""
        is_free = self.cycle is None or self.cycle.response_complete
        if self.road is None or not is_free or self.expect_100_continue:
            return None
        if self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return None
        call, is_kept = self.road.find_hot(self.url, self.headers), self.parser.should_keep_alive()
        if call is None:
            return None
        if self._sample and is_kept and self.short_way is not None:
            self.short_way.learn(self._sample, call, self.headers)
        return HotCycle(self, keep_alive=is_kept, call=call, certified=self._certified)

    def _run(self, hot: HotCycle) -> None:
        assert self.road is not None
        self._hot = None
        hot.more_body = False
        self.cycle = hot  # type: ignore[assignment]
        task = self.loop.create_task(hot.run(self.road, self._lease))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _begin_cycle(self) -> None:
        """What uvicorn does with a head: it keeps it in an ASGI scope."""
        url, headers, is_expecting = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, is_expecting
        self.headers += headers
        super().on_headers_complete()
        self.cycle.scope["state"] |= {"lease": self._lease, "certified": self._certified}
        self.cycle.transport = ClosingTransport(self.transport, self._close_answered)  # type: ignore[assignment]

    def _hand_to_framework(self, hot: HotCycle) -> None:
        """The rest of the body is still on its way: the framework waits for it."""
        self._hot = None
        if self.transport.is_closing():
            self._lease.close()
            return
        self._begin_cycle()
        for piece in hot.pieces:
            super().on_body(piece)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._ignore_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            if self.pipeline and self.cycle.more_body:  # not before what it came behind: then it is read once more
                self._unread = self._unread or data
            else:
                self.send_400_response("")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its offer to upgrade: the parser would take its body for another protocol.

        Some clients offer HTTP/2 with the first request of every connection.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        kept = [(name, value) for name, value in self.headers if name not in _UPGRADE_HEADERS]
        if not self.parser.should_keep_alive():
            kept.append((b"connection", b"close"))
        lines = [b"%b %b HTTP/1.1" % (method, self.url), *[b"%b: %b" % header for header in kept], b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"\r\n".join(lines) + rest)

    def _refuse(self, problem: Problem) -> None:
        self._refusal = problem
        raise _HeadRefused

    def _close_with(self, problem: Problem) -> None:
        """Answers and closes; but never answers in the place of a request that is being served."""
        self._disarm()
        if self.transport.is_closing():
            return
        served = self.cycle
        if served is not None and not served.response_complete:
            if served.response_started or served.more_body:
                self._answer_cut_off(problem, is_started=served.response_started)
            else:
                served.keep_alive = False
                self.flow.pause_reading()
            return
        self._write(problem)
        self._linger()

    def _close_answered(self) -> None:
        """The answer is the last one of the connection."""
        if self.cycle is not None and self.cycle.more_body and self.cycle.response_complete:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Closes the connection so that its client can read the answer first."""
        if self._lingering is None and not self.transport.is_closing():
            self._disarm()
            self._unset_keepalive_if_required()
            self._lingering = Lingering(self.transport)
            self.transport = ended = EndedTransport(self.transport)  # type: ignore[assignment]
            if self.cycle is not None:
                self.cycle.transport = ended  # type: ignore[assignment]
            self.idle[self] = None
            self._flow.hold(is_held=False)
            self._flow.resume_reading()

    def _answer_cut_off(self, problem: Problem, *, is_started: bool) -> None:
        """The body of the request being served is broken: nobody will act on it."""
        if is_started:
            self.transport.close()
        else:
            self._write(problem)
            self._linger()

    def _write(self, problem: Problem) -> None:
        request_id = secrets.token_hex(16)
        body = encode_problem(problem, request_id)
        headers = {**problem_headers(problem), "X-Request-Id": request_id, "Content-Length": str(len(body)), **CLOSE}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write(STATUS_LINE[problem.type.status] + "\r\n".join([*lines, "", ""]).encode() + body)
        _LOG.debug("connection_refused", code=problem.type.slug, request_id=request_id)

    def _await_head(self) -> None:
        self._is_in_head = True
        self._head_bytes = self._raw_bytes = 0

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_timed_out)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._flow.is_held:  # the rest of the head may have come: nobody looks yet
            self._arm()
        elif self._raw_bytes and self._is_in_head:
            self._close_with(Problem(REQUEST_TIMEOUT, f"head not received in {self.head_timeout_s:g} s"))
        else:
            self.transport.close()


def _find_end(data: bytes, start: int) -> int:
    """Where to stop, so that at most so many requests are read as may wait. Each has one end of a head at least."""
    end = start
    for _ in range(MAX_PIPELINED):
        found = data.find(_HEAD_END, end)
        if found < 0:
            return len(data)
        end = found + len(_HEAD_END)
    return end


def _nothing() -> None:
    """Nobody waits for this answer."""
