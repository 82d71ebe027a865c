"""A service's check endpoint over a socket: the WSGI mount of `outbox`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from outbox.check_handler import Answer, CheckHandler
from outbox.wsgi import CheckApp


class QuietHandler(WSGIRequestHandler):
    """A line for each call would drown what failed."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        pass


@contextmanager
def serving_checks(group_secret: list[str], answer: Answer) -> Iterator[str]:
    """The URL of a service's check endpoint; it gets its secret once the group is made."""
    handlers: list[CheckHandler] = []

    def app(environ, start_response):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if not handlers:
            handlers.append(CheckHandler(group_secret, answer))
        return CheckApp(handlers[0])(environ, start_response)

    with make_server("127.0.0.1", 0, app, WSGIServer, QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/outbox-checks"
        finally:
            server.shutdown()
            thread.join()
            for handler in handlers:
                handler.close()
