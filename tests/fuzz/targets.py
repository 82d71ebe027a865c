"""Parsers under arbitrary bytes, each held against a second way to read the same.

A parser may refuse with its own error and nothing else; what two ways take, they take alike.
"""

import asyncio
import base64
import contextlib
import json
import logging
import socket
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import structlog
from joserfc.jwk import ECKey, KeySet
from joserfc.jws import JWSRegistry
from uvicorn.config import Config
from uvicorn.server import ServerState
from yarl import URL

from api.remoting.frame import BadFrame, FrameBuffer, RemotingCommand, decode_frame, encode_frame
from api.remoting.message import UnreadableMessage, parse_properties, read_body, split_batch
from api.web import parse
from api.web.bodies import Prepare
from api.web.json import read_strict, read_strict_in_steps
from api.web.problems import Rejected
from api.web.protocol import BoundedProtocol
from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import StoredMessage
from bridge.core.op_message import (
    decode_answers,
    decode_op,
    decode_pending,
    decode_position,
    decode_view,
    encode_op,
    encode_position,
    make_view,
)
from bridge.core.properties import PROPERTIES_HEADER, decode_properties, encode_properties
from bridge.core.record import HalfMessage, Resolution
from bridge.core.record_codec import decode_any, decode_body, decode_parked, decode_record
from bridge.service.contract import PrepareCall
from bridge.service.issuers import BadToken, IssuerConfig, Issuers
from checker.endpoint_guard import CallbackPolicy, check_url, parse_networks
from tests.support.virtual_time import VirtualClock

ID = "0006k8e9s5ta7vo3q1m4c8b2h6dg"
_MOST_HEADERS = 64
_prepare = msgspec.json.Decoder(Prepare)


def properties(data: bytes) -> None:
    """What is taken is written again byte for byte."""
    try:
        found = decode_properties(data)
    except MalformedRecord:
        return
    assert encode_properties(found) == data


def records(data: bytes) -> None:
    """The first byte says which: journal record, parked one, op message, position, answers, framed messages."""
    readers = (_journal, _parked, _op, _position, decode_answers, _framed)
    try:
        readers[data[0] % len(readers)](data[1:]) if data else None
    except (MalformedRecord, UnknownRecordVersion):
        return


def _stored(raw: bytes) -> StoredMessage:
    return StoredMessage(0, None, None, [(PROPERTIES_HEADER, raw)], 0)


def _try(read: Callable[[], Any]) -> Any:
    """What is read, or the kind of error."""
    try:
        return read()
    except (MalformedRecord, UnknownRecordVersion, Rejected) as error:
        return type(error)


def _journal(raw: bytes) -> None:
    quick, general = _try(lambda: decode_record(_stored(raw))), _try(lambda: decode_any(raw))
    assert quick == general, f"{quick!r} is not {general!r}"


def _parked(raw: bytes) -> None:
    parked = decode_parked(_stored(raw))
    assert decode_any(raw) == parked or b"KIND\x01D" in raw


def _op(raw: bytes) -> None:
    view, pending = _try(lambda: decode_view(ID, raw)), decode_pending(raw)
    op = _try(lambda: decode_op(ID, raw))
    if isinstance(op, type):
        assert (view, pending) == (op, None)
        return
    assert view == (make_view(op), op.transaction.requests)
    written = encode_op(op)  # without members that such a state does not have
    assert encode_op(decode_op(ID, written)) == written
    assert pending is None or pending.half == op.transaction.half


def _position(raw: bytes) -> None:
    position = decode_position(raw)
    assert decode_position(encode_position(position)) == position


def _framed(raw: bytes) -> None:
    decode_body(HalfMessage(ID, "g", 2, 0), StoredMessage(0, None, raw, [(PROPERTIES_HEADER, b"")], 0))


def bodies(data: bytes) -> None:
    """The first byte says which: any document, a prepare, a batch, an end, one resolution, several."""
    readers = (_document, _one_prepare, _prepares, _one_end, parse.parse_resolution, parse.parse_resolutions)
    try:
        readers[data[0] % len(readers)](data[1:]) if data else None
    except Rejected:
        return


def _document(raw: bytes) -> None:
    """In one piece, in steps, and as Python reads it."""
    whole = _try(lambda: read_strict(raw))
    stepwise = _try(lambda: _run(read_strict_in_steps(raw, window_bytes=4)))
    assert stepwise == whole, f"{stepwise!r} is not {whole!r}"
    if isinstance(whole, bytes):
        assert _loads(whole) == _loads(raw)


def _run(steps: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bytes(end.value)


def _loads(raw: bytes) -> Any:
    return json.loads(raw, parse_int=str, parse_float=str)


def _one_prepare(raw: bytes) -> None:
    """The fast reading takes nothing that the strict one refuses, and reads it alike."""
    quick = _try(lambda: parse.parse_prepare(raw, _MOST_HEADERS))
    strict = _try(lambda: _read_strictly(raw))
    assert quick == strict, f"{quick!r} is not {strict!r}"


def _read_strictly(raw: bytes) -> PrepareCall:
    body = parse.decode_body(read_strict(raw), _prepare)
    return parse._make_prepare(body, _MOST_HEADERS, None, is_published=False)


def _prepares(raw: bytes) -> None:
    parse.parse_prepare_batch(raw, _MOST_HEADERS)
    try:
        read_strict(raw)
    except Rejected as rejected:
        raise AssertionError("a batch was taken that is not strict") from rejected


def _one_end(raw: bytes) -> None:
    parse.parse_end(raw, ID, Resolution.COMMIT)


class _Timer:
    def cancel(self) -> None:
        """Nothing waits."""


class _Loop:
    """Keeps what is begun. No time passes."""

    def __init__(self) -> None:
        self.begun: list[Any] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, *_: object) -> _Timer:
        return _Timer()

    def create_task(self, call: Any, **_: object) -> Any:
        self.begun.append(call)
        return self

    def add_done_callback(self, _: object) -> None:
        """It is run by `_Connection`."""


class _Transport:
    """Takes everything."""

    is_closed = False

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def write(self, _: bytes) -> None:
        """Nobody reads."""

    def pause_reading(self) -> None:
        """What is fed is fed."""

    resume_reading = write_eof = pause_reading  # type: ignore[assignment]

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True


class _Connection:
    """What the application was asked, in order: each request is answered as soon as it is complete."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._loop, self._transport = _Loop(), _Transport()
        asyncio.events._set_running_loop(self._loop)  # type: ignore[arg-type]
        self._protocol = BoundedProtocol(_CONFIG, ServerState(), {}, self._loop)  # type: ignore[arg-type]
        self._protocol.app = self._answer  # type: ignore[assignment]
        self._protocol.connection_made(self._transport)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        self._protocol.data_received(data)
        while self._loop.begun and not self._loop.begun[0].cr_frame.f_locals["self"].more_body:
            call = self._loop.begun.pop(0)
            try:
                call.send(None)
            except StopIteration:
                continue
            raise AssertionError("a complete request waits for something")

    def close(self) -> None:
        self._protocol.connection_lost(None)
        for call in self._loop.begun:
            call.close()
        asyncio.events._set_running_loop(None)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.asked.append((scope["method"], scope["raw_path"], scope["query_string"], list(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def heads(data: bytes) -> None:
    """The first byte says where the rest is cut in two: requests are the same as if it came at once.

    After bytes that are no request one of the two may have answered more of what came before them.
    """
    if not data:
        return
    at, rest = data[0] * len(data) // 256, data[1:]
    asked = []
    for pieces in ((rest,), (rest[:at], rest[at:])):
        connection = _Connection()
        for piece in pieces:
            if piece:
                connection.feed(piece)
        connection.close()
        asked.append(connection.asked)
    fewer, more = sorted(asked, key=len)
    assert more[: len(fewer)] == fewer, f"{more} is not {fewer}"


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Never called."""


def frames(data: bytes) -> None:
    """A stream of RocketMQ's frames, whole and cut: the same commands, each of which can be written and read again.

    Bodies and properties of what it holds are read too.
    """
    if not data:
        return
    at, rest = data[0] * len(data) // 256, data[1:]
    found = [_read_frames(pieces) for pieces in ((rest,), (rest[:at], rest[at:]))]
    assert found[0] == found[1], f"{found[0]} is not {found[1]}"
    for command in found[0]:
        again = decode_frame(encode_frame(command))
        assert again == command or not command.remark, f"{again} is not {command}"
        parse_properties(command.fields.get("i", ""))
        for read in (lambda: split_batch(command.body), lambda: read_body(command.body, command.flag | 1, 4_096)):  # noqa: B023
            with contextlib.suppress(UnreadableMessage):
                read()


def _read_frames(pieces: tuple[bytes, ...]) -> list[RemotingCommand]:
    buffer, found = FrameBuffer(4_096), list[RemotingCommand]()
    with contextlib.suppress(BadFrame):
        for piece in pieces:
            buffer.add(piece)
            found.extend(buffer.take())
    return found


def urls(data: bytes) -> None:
    """Of check endpoints: what is taken means the same host and port to the client, and no address to the system."""
    text = data.decode("latin-1")
    for policy in _POLICIES:
        checked = check_url(text, policy)
        if isinstance(checked, str):
            continue
        seen = URL(text, encoded=True)
        assert (str(seen.raw_host).lower(), seen.port, seen.scheme) == (checked.host, checked.port, checked.scheme), (
            text
        )
        assert (seen.user, seen.password, seen.raw_fragment) == (None, None, ""), text
        assert policy.allow_networks or not _is_address(checked.host), text
        assert policy.allow_networks or (checked.scheme == "https" and checked.port in {443, 8443}), text


def _is_address(host: str) -> bool:
    """As the system reads it: with few numbers, octal or hexadecimal ones."""
    with contextlib.suppress(OSError):
        return bool(socket.inet_aton(host.removesuffix(".")))
    return ":" in host


def tokens(data: bytes) -> None:
    """Head and claims, a null byte between them, signed with the issuer's key; or a whole token.

    What is believed names issuer, audience and algorithm that are pinned, has an end, and is of the key.
    """
    head, mark, claims = data.partition(b"\0")
    signed = b".".join([_encode(head), _encode(claims)])
    whole = b".".join([signed, _encode(_SIGNER.sign(signed, _KEY))]) if mark else data
    try:
        holder = _ISSUERS.read(whole.decode("latin-1"))
    except BadToken:
        return
    assert mark, whole
    named, told = json.loads(head), json.loads(claims)
    assert (named["alg"], told["iss"], holder.principal) == ("ES256", _ISSUER.issuer, f"login:{told['sub']}")
    assert _ISSUER.audience in ([told["aud"]] if isinstance(told["aud"], str) else told["aud"])
    assert -60 <= told["exp"] - _CLOCK.now_ms() / 1000 <= _ISSUER.max_life_s + 60


def _encode(text: bytes) -> bytes:
    return base64.urlsafe_b64encode(text).rstrip(b"=")


async def _show_keys(_: str) -> bytes:
    return json.dumps(KeySet([_KEY]).as_dict(private=False)).encode()


_POLICIES = (CallbackPolicy(), CallbackPolicy(parse_networks(["127.0.0.0/8", "10.0.0.0/8", "::1/128"])))
_KEY, _CLOCK, _SIGNER = ECKey.generate_key("P-256", {"kid": "ec"}), VirtualClock(), JWSRegistry.algorithms["ES256"]
_ISSUER = IssuerConfig("https://login.example", "bridge", "https://login.example/keys", prefix="login:")
_ISSUERS = Issuers([_ISSUER], _show_keys, _CLOCK)
asyncio.run(_ISSUERS.refresh())

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
_CONFIG = Config(_nothing, log_config=None, interface="asgi3")
_CONFIG.load()

TARGETS: dict[str, Callable[[bytes], None]] = {
    "bodies": bodies,
    "frames": frames,
    "heads": heads,
    "properties": properties,
    "records": records,
    "tokens": tokens,
    "urls": urls,
}
