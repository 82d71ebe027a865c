"""A user's ASGI application behind a socket on loopback, so that the bridge can call its check endpoint."""

import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn

_START_S = 20.0
_STOP_S = 10


class AppServer:
    """Serves in a thread with an event loop of its own, from `with` to the end of its block."""

    def __init__(self, app: object) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._started = threading.Event()
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]  # whatever speaks ASGI
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = _Server(config, self._started)
        self._thread = threading.Thread(target=self._run, name="app-under-test", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(_START_S) or not self._server.started:
            self._socket.close()
            raise RuntimeError("the application does not start; its log says why")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(2 * _STOP_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._started.set()


class _Server(uvicorn.Server):
    """Tells that it has started."""

    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._is_up = started

    async def startup(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        self._is_up.set()
