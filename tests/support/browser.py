"""Debian's Chromium over DevTools: opens a file as a person would, and answers questions about what it shows."""

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ANSWER_S = 120.0
_FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)


class Tab:
    """One page. Screens are given in CSS pixels."""

    def __init__(self, connection: ClientConnection, session: str) -> None:
        self._connection = connection
        self._session = session
        self._numbers = count(1)
        self.requested: list[str] = []
        for domain in ("Page", "Network", "Runtime"):
            self._ask(f"{domain}.enable")

    def show(self, width: int, *, is_dark: bool = False, media: str = "screen") -> None:
        """Makes the screen so wide, and the reader's preference light or dark; `media` print: as paper would be."""
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", **metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=media, features=[feature])

    def open(self, path: Path) -> None:
        """Loads a file; `requested` is what the page asked for on the way."""
        self.requested.clear()
        self.visit(path.as_uri())

    def visit(self, url: str) -> None:
        """Follows an address, whatever answers there."""
        self._ask("Page.navigate", url=url)
        self._await("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def photograph(self, path: Path) -> None:
        """The whole page as a picture."""
        taken = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _ask(self, method: str, **members: Any) -> dict[str, Any]:
        number = next(self._numbers)
        request = {"id": number, "sessionId": self._session, "method": method, "params": members}
        self._connection.send(json.dumps(request))
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, heard["error"]
                return dict(heard["result"])

    def _await(self, event: str) -> None:
        while self._hear().get("method") != event:
            pass

    def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._connection.recv(_ANSWER_S))
        if heard.get("method") == "Network.requestWillBeSent":
            self.requested.append(heard["params"]["request"]["url"])
        return heard


def find_chromium() -> str:
    """The program; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return program


@contextmanager
def open_tab(*flags: str) -> Iterator[Tab]:
    """A browser of its own with one empty page; skips the test where there is none."""
    program = find_chromium()
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-browser-", ignore_cleanup_errors=True) as profile:
        command = [program, *_FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as popen:
            try:
                with connect(_read_address(popen), max_size=None) as connection:
                    yield Tab(connection, _attach(connection))
            finally:
                popen.kill()


def _read_address(popen: "subprocess.Popen[str]") -> str:
    assert popen.stderr is not None
    told = []
    for line in popen.stderr:
        told.append(line)
        if line.startswith("DevTools listening on "):
            return line.split()[-1]
    raise AssertionError("Chromium does not start: " + "".join(told))


def _attach(connection: ClientConnection) -> str:
    """The session of the page that is open."""
    page = next(one for one in _call(connection, "Target.getTargets")["targetInfos"] if one["type"] == "page")
    return str(_call(connection, "Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"])


def _call(connection: ClientConnection, method: str, **members: Any) -> dict[str, Any]:
    """A command to the browser itself."""
    connection.send(json.dumps({"id": 0, "method": method, "params": members}))
    while "result" not in (heard := json.loads(connection.recv(_ANSWER_S))):
        pass
    return dict(heard["result"])
