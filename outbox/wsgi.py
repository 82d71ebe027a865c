"""The check endpoint as a WSGI application.

In Flask: `app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/outbox-checks": CheckApp(handler)})`.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from outbox.check_handler import CheckHandler, CheckResponse, refuse

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class CheckApp:
    """Answers POST at whatever path it is mounted."""

    def __init__(self, handler: CheckHandler) -> None:
        self._handler = handler

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        reply = self._respond(environ)
        start_response(f"{reply.status} {HTTPStatus(reply.status).phrase}", reply.headers)
        return [reply.body]

    def _respond(self, environ: "WSGIEnvironment") -> CheckResponse:
        method, length = environ["REQUEST_METHOD"], environ.get("CONTENT_LENGTH") or None
        refused = self._handler.gate.refuse_head(method, length)
        if refused is not None:
            return refused
        if length is not None and not length.isdecimal():
            return refuse(HTTPStatus.BAD_REQUEST, "the length is not a number")
        if length is None and not environ.get("wsgi.input_terminated"):
            return refuse(HTTPStatus.LENGTH_REQUIRED, "a length is needed")
        most = self._handler.gate.config.max_body_bytes + 1
        body = environ["wsgi.input"].read(most if length is None else int(float(length)))
        return self._handler.respond(method, read_headers(environ), body)


def read_headers(environ: "WSGIEnvironment") -> dict[str, str]:
    """The request's headers, names in lower case."""
    return {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
