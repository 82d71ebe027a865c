"""The bridge of a run of pytest: a process of its own, with one command a line."""

import json
import logging
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import uvicorn

_START_S = 20.0
_SERVER_STOP_S = 10


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
            timeout_graceful_shutdown=_SERVER_STOP_S,
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

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(2 * _SERVER_STOP_S)
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


_ANSWER_S = 60.0
_STOP_S = 20.0
_SHOWN_CHARACTERS = 2_000


class BridgeFailed(Exception):
    """The process cannot do what was asked; the message says why, and what can be done."""


class BridgeProcess:
    """Started with `kind`, "memory" or "kafka", and a folder for its data; ends when its standard input does."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self._popen = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "outbox.application", "api.testing", kind, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for pytest, which lets fixtures end in order
        )

    def ask(self, what: str, **given: object) -> Any:  # noqa: ANN401 - what JSON holds
        """The answer to one command. Raises BridgeFailed. What the bridge has logged meanwhile is logged here."""
        assert self._popen.stdin is not None
        with self._lock:
            try:
                self._popen.stdin.write(json.dumps({"what": what, **given}) + "\n")
                self._popen.stdin.flush()
            except BrokenPipeError as error:
                raise self._ended() from error
            answer = self._read()
        for name, level, text in answer["log"]:
            logging.getLogger(name).log(level, "%s", text)
        if "error" in answer:
            raise BridgeFailed(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Returns when it has ended."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._popen.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        ready, _, _ = select.select([self._popen.stdout], [], [], _ANSWER_S)
        if not ready:
            raise BridgeFailed(f"the bridge has not answered in {_ANSWER_S:g} s")
        line = self._popen.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> BridgeFailed:
        code = self._popen.wait()
        self._errors.seek(0)
        return BridgeFailed(f"the bridge ended with code {code}\n{self._errors.read()[-_SHOWN_CHARACTERS:].strip()}")
