"""The usual calls of every transaction, answered from the reports of their records: without parser, request or task.

A head that is byte for byte like one that the road took means what that one meant, so it is not read again. Whatever
is rare about a call, or stands against it, is left to the road, before anything has happened.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.web.guard import MARK, ByteLease, RawHeaders, identify, make_request_id, refuse_accept
from api.web.limits import Usage
from api.web.problems import Problem
from api.web.road import HotCall, HttpAnswer, Road, Route, explain
from bridge.core.message import Header
from bridge.core.transaction import NO_TRACE, is_raw_id, read_trace
from bridge.service.access import Caller

START = b"POST /v1/transactions"
_HEAD_END = b"\r\n\r\n"
_AT, _ID_END = len(START), len(START) + 29
_MOST_HEADS, _MOST_HEAD_BYTES, _MOST_BODY_BYTES = 1_024, 1_024, 60_000
# of these it is certain that they mean the same in every request, or nothing; not so of an id, a key or a preference
_PLAIN = frozenset(
    {b"host", b"content-type", b"content-length", b"accept", b"accept-encoding", b"user-agent", b"connection"}
    | {b"authorization"}  # as long as nobody's rights have changed
    | {MARK.lower().encode()}
)

# every request has another trace: it is taken out of the head before that is looked for
_TRACE_LINES = re.compile(rb"\r\n(?i:trace(parent|state)):([^\r\n]*)(?=\r\n)")
_PARENT_ALONE = 3  # parts of a head that is split there
_TRACES = frozenset({b"traceparent", b"tracestate"})

Finish = Callable[[HttpAnswer, str], None]


class KnownHead(NamedTuple):
    """A head that was taken. The text in its path may be another one next time."""

    route: Route
    body_bytes: int
    caller: Caller
    generation: int


Found = tuple[KnownHead, str, bytes, Sequence[Header]]
"""A whole request with a head that is known: that, the text in its path, its body, its trace."""


class ShortWay:
    """Remembers heads, and begins calls that have them.

    `certified`: the principal that the certificates of these connections name. A head without a credential means
    somebody else on others, so each principal has a way of its own; there are as many as the settings list.
    """

    def __init__(self, road: Road, certified: str | None = None) -> None:
        self._road = road
        self._certified = certified
        self._others: dict[str, ShortWay] = {}
        self._prepares: dict[bytes, KnownHead] = {}
        self._ends: dict[bytes, KnownHead] = {}  # from behind the id on

    def of(self, certified: str) -> "ShortWay":
        """That of connections with a certificate of this principal."""
        return self._others.setdefault(certified, ShortWay(self._road, certified))

    def find(self, data: bytes) -> Found | None:
        """What is known of the head of a whole request, and what is its own."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if data.startswith(b" ", _AT):
            heads, head, text = self._prepares, data[_AT:end], b""
        else:
            heads, head, text = self._ends, data[_ID_END:end], data[_AT + 1 : _ID_END]
        known, trace = heads.get(head), NO_TRACE
        if known is None and heads:
            rest, trace = _cut_trace(head)
            known = heads.get(rest)
        if known is None or len(data) - end != known.body_bytes or (text and not is_raw_id(text)):
            return None
        if known.generation != self._road.services.access.generation:
            return None
        return known, text.decode(), data[end:], trace

    def learn(self, data: bytes, call: HotCall, headers: RawHeaders) -> None:
        """The data began with this head, and it is a request for this call on a connection that stays."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        head, _ = _cut_trace(data[:end])
        headers = [header for header in headers if header[0] not in _TRACES]
        fields = dict(headers)
        length = fields.get(b"content-length", b"0")
        if call.query or end > _MOST_HEAD_BYTES or head.count(b"\n") != head.count(b"\r\n"):
            return
        if len(fields) != len(headers) or not fields.keys() <= _PLAIN or not length.isdigit():
            return
        if fields.get(b"content-type") != b"application/json" or int(length) > _MOST_BODY_BYTES:
            return
        if self._road.doorkeeper.refuse("POST", call.path, headers) or refuse_accept(call.path, headers):
            return
        access = self._road.services.access
        caller = identify(access, call.path, headers, self._certified)
        if isinstance(caller, Problem) or call.route.needs.refuse(caller.rights):
            return
        if call.texts == (data[_AT + 1 : _ID_END].decode("latin-1"),):
            heads, key = self._ends, head[_ID_END:]
        elif not call.texts:
            heads, key = self._prepares, head[_AT:]
        else:
            return
        while len(heads) >= _MOST_HEADS:
            del heads[next(iter(heads))]
        heads[key] = KnownHead(call.route, int(length), caller, access.generation)

    def begin(self, found: Found, finish: Finish) -> bool:
        """Whether the answer will be given to `finish`. If not, nothing has happened."""
        known, text, body, trace = found
        road, begin = self._road, known.route.begin
        traffic, budget = road.traffic, road.traffic.budget
        if begin is None or traffic.refuse(known.route.path) or budget.used + len(body) > budget.for_large:
            return False
        usage = None
        if known.caller.key_id is not None:
            usage = traffic.quotas.find(known.caller.name)
            problem = traffic.quotas.enter(usage, traffic.in_flight)
            if problem is not None:  # told here: refusing must cost less than serving
                _Passage(road, found, None, finish).give(problem)
                return True
            usage.charge_bytes(len(body))
        passage = _Passage(road, found, usage, finish)
        try:
            if begin(road.services, known.caller.rights, body, text, trace, passage.give):
                if known.caller.key_id is not None:
                    road.services.access.note_use(known.caller)
                return True
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            passage.give(explain(error, passage.request_id))
            return True
        passage.leave()
        if usage is not None:
            usage.give_back(len(body))
        return False


def _cut_trace(head: bytes) -> tuple[bytes, Sequence[Header]]:
    """The head without the lines of its trace, and that trace."""
    before, *parts = _TRACE_LINES.split(head)
    if not parts:
        return head, NO_TRACE
    if len(parts) == _PARENT_ALONE and parts[0] == b"parent":
        return before + parts[2], read_trace((parts[1],))
    given = [(kind.lower(), value) for kind, value in zip(parts[::3], parts[1::3], strict=True)]
    parents, states = ([value for kind, value in given if kind == wanted] for wanted in (b"parent", b"state"))
    return b"".join([before, *parts[2::3]]), read_trace(parents, states)


class _Passage:
    __slots__ = ("_finish", "_known", "_road", "_started", "_trace", "_usage", "is_over", "request_id")

    def __init__(self, road: Road, found: Found, usage: Usage | None, finish: Finish) -> None:
        known, _, _, self._trace = found
        self.request_id = make_request_id()
        self.is_over = False
        self._road = road
        self._known = known
        self._usage = usage
        self._finish = finish
        self._started = time.perf_counter()
        road.traffic.in_flight += 1
        road.traffic.budget.used += known.body_bytes

    def leave(self) -> None:
        self.is_over = True
        self._road.traffic.in_flight -= 1
        if self._usage is not None:
            self._usage.leave()
        self._road.traffic.budget.used -= self._known.body_bytes

    def find_trace(self) -> Sequence[Header]:
        return self._trace

    def give(self, told: HttpAnswer | Problem) -> None:
        """The answer, once."""
        if self.is_over:
            return
        self.leave()
        road, request_id = self._road, self.request_id
        answer = road.show_problem(told, request_id) if isinstance(told, Problem) else told
        road.account(self._known.route.path_format, "POST", answer.status, self._started, self)
        self._finish(answer, request_id)


class HotCycle:
    """A hot request: collects its body, answers it. The names without a comment are those that uvicorn looks at."""

    _default_head: ClassVar[tuple[object, bytes]] = (None, b"")

    def __init__(
        self,
        connection: HttpToolsProtocol,
        *,
        keep_alive: bool,
        call: HotCall | None = None,
        certified: str | None = None,
    ) -> None:
        self.pieces: list[bytes] = []  # of the body
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.disconnected = False
        self._call = call
        self._certified = certified
        self._headers = connection.headers
        self._connection = connection

    @property
    def message_event(self) -> "HotCycle":
        """Not kept: a cycle of references would wait for the garbage collector, with the body in it."""
        return self

    def set(self) -> None:
        """Nobody waits for more of the body."""

    async def run(self, road: Road, lease: ByteLease) -> None:
        """Answers the request, which is whole."""
        assert self._call is not None
        connection = self._connection
        body = b"".join(self.pieces)
        self.pieces.clear()  # the connection keeps the cycle until its next request
        answer, request_id = await road.answer_whole(
            self._call, self._headers, connection.client, body, lease, self._certified
        )
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        self.finish(answer, request_id)

    def finish(self, answer: HttpAnswer, request_id: str) -> None:
        """Sends the answer."""
        connection = self._connection
        self.response_started = self.response_complete = True
        if self.disconnected:
            return
        connection.transport.write(self._encode(answer, request_id))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def _encode(self, answer: HttpAnswer, request_id: str) -> bytes:
        kind = "" if answer.media_type is None else f"content-type: {answer.media_type}\r\n"
        lines = "".join([f"{name}: {value}\r\n" for name, value in answer.headers])
        closing = ""
        if ("Connection", "close") in answer.headers:
            self.keep_alive = False
        elif not self.keep_alive:
            closing = "connection: close\r\n"
        head = f"{kind}{lines}x-request-id: {request_id}\r\n{closing}content-length: {len(answer.body)}\r\n\r\n"
        return b"".join((STATUS_LINE[answer.status], self._make_default_head(), head.encode(), answer.body))

    def _make_default_head(self) -> bytes:
        """Header lines of every answer; the server makes them anew every second."""
        headers = self._connection.server_state.default_headers
        if self._default_head[0] is not headers:
            HotCycle._default_head = headers, b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._default_head[1]
