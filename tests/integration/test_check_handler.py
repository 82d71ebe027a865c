"""The mounted check endpoint: asked by the bridge's own caller's words, over ASGI, WSGI and Django."""

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from bridge.core.transaction import show_time
from checker.call import sign_call
from outbox.asgi import CheckApp as AsgiCheckApp
from outbox.check_handler import (
    AsyncCheckHandler,
    CheckConfig,
    CheckHandler,
    CheckResponse,
    from_async_callable,
    from_callable,
)
from outbox.client.checks import Check, Tell
from outbox.client.listener import Resolution
from outbox.tables import make_record_table
from outbox.transaction_record import AsyncTransactionRecord, TransactionRecord
from outbox.wsgi import CheckApp as WsgiCheckApp
from tests.support.user_database import UserDatabase

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
Post = Callable[[str, dict[str, str], bytes], Awaitable[CheckResponse]]
Mount = Callable[[CheckHandler], Post]


def make_call(*transaction_ids: str, group: str = "orders") -> bytes:
    checks = [
        {
            "transaction_id": transaction_id,
            "check_number": 1,
            "nonce": f"1-{transaction_id:a>20}",
            "born_time": show_time(time.time_ns() // 1_000_000),
            "idempotency_key": None,
            "messages": [{"topic": "orders", "key": None, "value": "v", "headers": []}],
        }
        for transaction_id in transaction_ids
    ]
    return json.dumps({"type": "transaction.check", "producer_group": group, "checks": checks}).encode()


def sign(body: bytes, at_ms: int | None = None) -> dict[str, str]:
    headers = sign_call([SECRET], "msg_1", time.time_ns() // 1_000_000 if at_ms is None else at_ms, body.decode())
    return {"content-type": "application/json", **(headers or {})}


def read(reply: CheckResponse) -> dict[str, str]:
    """Resolution by transaction id; the nonces must be right."""
    assert reply.status == 200, reply.body
    resolutions = json.loads(reply.body)["resolutions"]
    assert all(entry["nonce"] == f"1-{entry['transaction_id']:a>20}" for entry in resolutions)
    return {entry["transaction_id"]: entry["resolution"] for entry in resolutions}


def mount_asgi(handler: CheckHandler | AsyncCheckHandler) -> Post:
    async def post(method: str, headers: dict[str, str], body: bytes) -> CheckResponse:
        events = [{"type": "http.request", "body": part, "more_body": True} for part in (body[:7], body[7:])]
        events.append({"type": "http.request"})
        sent: list[Any] = []

        async def receive() -> Any:
            return events.pop(0)

        async def send(event: Any) -> None:
            sent.append(event)

        raw = [(name.title().encode(), value.encode()) for name, value in headers.items()]
        await AsgiCheckApp(handler)({"type": "http", "method": method, "headers": raw}, receive, send)
        assert dict(sent[0]["headers"])[b"content-length"] == str(len(sent[1]["body"])).encode()
        return CheckResponse(sent[0]["status"], sent[1]["body"])

    return post


def make_environ(method: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    named = {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()}
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "CONTENT_LENGTH": str(len(body)), **named}
    setup_testing_defaults(environ)
    return environ | {"wsgi.input": io.BytesIO(body)}


def mount_wsgi(handler: CheckHandler) -> Post:
    async def post(method: str, headers: dict[str, str], body: bytes) -> CheckResponse:
        started: list[str] = []
        app = WsgiCheckApp(handler)
        parts = await asyncio.to_thread(
            lambda: list(app(make_environ(method, headers, body), lambda status, _, __=None: started.append(status)))  # type: ignore[arg-type, return-value]
        )
        return CheckResponse(int(started[0][:3]), b"".join(parts))

    return post


def mount_django(handler: CheckHandler) -> Post:
    from django.conf import settings  # noqa: PLC0415 - configured here, for these tests alone
    from django.core.handlers.wsgi import WSGIRequest  # noqa: PLC0415

    from outbox.django import check_view  # noqa: PLC0415

    if not settings.configured:
        settings.configure()
    view = check_view(handler)

    async def post(method: str, headers: dict[str, str], body: bytes) -> CheckResponse:
        response = await asyncio.to_thread(view, WSGIRequest(make_environ(method, headers, body)))
        return CheckResponse(response.status_code, response.content)

    assert view.csrf_exempt  # type: ignore[attr-defined]
    return post


@pytest.fixture(params=[mount_asgi, mount_wsgi, mount_django], ids=["asgi", "wsgi", "django"])
def mount(request: pytest.FixtureRequest) -> Mount:
    made: Mount = request.param
    return made


@pytest.fixture
def open_handler() -> Iterator[Callable[..., CheckHandler]]:
    """Makes handlers that are closed at the end."""
    made: list[CheckHandler] = []

    def open_one(answer: Callable[[Sequence[Check], Tell], None], **options: Any) -> CheckHandler:
        made.append(CheckHandler([SECRET], answer, **options))
        return made[-1]

    yield open_one
    for handler in made:
        handler.close()


def all_commit(checks: Sequence[Check], tell: Tell) -> None:
    for check in checks:
        tell(check, Resolution.COMMIT)


@pytest.mark.parametrize(("length", "status"), [("9" * 5_000, "413"), ("0" * 5_000, "401"), ("x", "400")])
def test_length_that_no_body_has_is_refused(
    open_handler: Callable[..., CheckHandler], length: str, status: str
) -> None:
    """Whoever calls may write it."""
    environ = make_environ("POST", {}, b"") | {"CONTENT_LENGTH": length}
    started: list[str] = []
    list(WsgiCheckApp(open_handler(all_commit))(environ, lambda status, _, __=None: started.append(status)))  # type: ignore[arg-type, return-value]
    assert started[0][:3] == status


async def test_each_mount_refuses_what_it_should(mount: Mount, open_handler: Callable[..., CheckHandler]) -> None:
    """None of these is an answer to the bridge, and for none of them is anything looked up."""
    asked: list[Check] = []
    handler = open_handler(
        lambda checks, tell: asked.extend(checks), producer_groups=["orders"], config=CheckConfig(max_body_bytes=600)
    )
    post, body = mount(handler), make_call("one")
    foreign, large = make_call("one", group="other"), make_call(*"abcdef")  # each names the moment
    for refused, status in [
        (await post("GET", sign(b""), b""), 405),
        (await post("POST", {}, body), 401),
        (await post("POST", sign(body + b" "), body), 401),
        (await post("POST", sign(body, at_ms=0), body), 401),
        (await post("POST", sign(b"[]"), b"[]"), 422),
        (await post("POST", sign(foreign), foreign), 403),
        (await post("POST", sign(large), large), 413),
    ]:
        assert refused.status == status, refused
        assert json.loads(refused.body)["status"] == status
    assert asked == []
    assert read(await post("POST", sign(body), body)) == {}


async def test_each_mount_answers_from_the_record(
    mount: Mount, open_handler: Callable[..., CheckHandler], user_database: UserDatabase
) -> None:
    """One call about committed and lost local transactions of a real database."""
    record = TransactionRecord(make_record_table(sa.MetaData()))
    engine = user_database.engine()
    record.table.metadata.create_all(engine)
    with orm.Session(engine) as session:
        record.write(session, "kept", "orders")
        session.commit()
    body = make_call("kept", "lost")
    handler = open_handler(record.answers(engine), config=CheckConfig(deadline_ms=30_000))
    assert read(await mount(handler)("POST", sign(body), body)) == {"kept": "COMMIT", "lost": "ROLLBACK"}
    engine.dispose()


async def test_async_handler_answers_from_the_record(user_database: UserDatabase) -> None:
    """The same on an async engine, in the event loop."""
    record = AsyncTransactionRecord(make_record_table(sa.MetaData()))
    engine = user_database.async_engine()
    async with engine.begin() as conn:
        await conn.run_sync(record.table.metadata.create_all)
        await record.write(conn, "kept", "orders")
    handler = AsyncCheckHandler([SECRET], record.answers(engine), config=CheckConfig(deadline_ms=30_000))
    body = make_call("kept", "lost")
    assert read(await mount_asgi(handler)("POST", sign(body), body)) == {"kept": "COMMIT", "lost": "ROLLBACK"}
    await engine.dispose()


async def test_database_that_fails_gives_no_answer(user_database: UserDatabase) -> None:
    """A missing table, as a stand-in for any failure: 503, never a ROLLBACK."""
    record = TransactionRecord(make_record_table(sa.MetaData()))
    handler = CheckHandler([SECRET], record.answers(user_database.engine()), config=CheckConfig(deadline_ms=30_000))
    body = make_call("kept")
    assert (await mount_asgi(handler)("POST", sign(body), body)).status == 503
    handler.close()


async def test_what_is_known_in_time_is_answered(open_handler: Callable[..., CheckHandler]) -> None:
    """At the deadline the rest is left out; what comes later changes nothing; with nothing known it is a 503."""
    release = threading.Event()

    def slow(checks: Sequence[Check], tell: Tell) -> None:
        if checks[0].transaction_id == "first":
            tell(checks[0], Resolution.COMMIT)
        release.wait(60)
        all_commit(checks, tell)

    post = mount_asgi(open_handler(slow, config=CheckConfig(deadline_ms=50)))
    some, none = make_call("first", "second"), make_call("second")
    assert read(await post("POST", sign(some), some)) == {"first": "COMMIT"}
    assert (await post("POST", sign(none), none)).status == 503
    release.set()


async def test_async_answers_have_the_same_deadline() -> None:
    """A coroutine that hangs is cancelled; what it had said stands."""

    async def hang(checks: Sequence[Check], tell: Tell) -> None:
        tell(checks[0], Resolution.UNKNOWN)
        await asyncio.Event().wait()

    post = mount_asgi(AsyncCheckHandler([SECRET], hang, config=CheckConfig(deadline_ms=50)))
    body = make_call("first", "second")
    assert read(await post("POST", sign(body), body)) == {"first": "UNKNOWN"}


async def test_async_answer_whose_own_end_hangs_keeps_nobody_waiting() -> None:
    """As the close of a connection to a database that is frozen: what was known is answered all the same, in time."""
    release = asyncio.Event()

    async def hang(checks: Sequence[Check], tell: Tell) -> None:
        tell(checks[0], Resolution.COMMIT)
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()

    post = mount_asgi(AsyncCheckHandler([SECRET], hang, config=CheckConfig(deadline_ms=50)))
    body = make_call("first", "second")
    async with asyncio.timeout(10):
        assert read(await post("POST", sign(body), body)) == {"first": "COMMIT"}
    release.set()


@pytest.mark.parametrize("returned", [[], [Resolution.COMMIT] * 3, ["COMMIT", None], None])
async def test_callable_that_answers_nonsense_is_no_answer(
    open_handler: Callable[..., CheckHandler], returned: Any
) -> None:
    """Too few, too many, or words that are no resolutions: nothing is guessed."""
    body = make_call("one", "two")
    post = mount_asgi(open_handler(from_callable(lambda _: returned)))
    assert (await post("POST", sign(body), body)).status == 503


async def test_callable_of_the_users_own_is_asked(open_handler: Callable[..., CheckHandler]) -> None:
    """In the order of the checks; None leaves one out. Sync and async alike."""
    words = {"one": Resolution.ROLLBACK, "two": None, "three": Resolution.UNKNOWN}

    async def answer(checks: Sequence[Check]) -> Sequence[Resolution | None]:
        return [words[check.transaction_id] for check in checks]

    body = make_call(*words)
    sync = open_handler(from_callable(lambda checks: [words[check.transaction_id] for check in checks]))
    for post in (mount_asgi(sync), mount_asgi(AsyncCheckHandler([SECRET], from_async_callable(answer)))):
        assert read(await post("POST", sign(body), body)) == {"one": "ROLLBACK", "three": "UNKNOWN"}
