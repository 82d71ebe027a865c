"""Bridges that are away, each in its own way.

with refusing() as url: ...      nobody listens there
with black_holed() as url: ...   packets get no answer
with hanging_up() as door: ...   connections are taken and closed; door.calls counts them
with frozen(process): ...        a process that stands still, whose connections stay open
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

HOST = "127.0.0.1"


def _url(listening: socket.socket) -> str:
    return f"http://{HOST}:{listening.getsockname()[1]}"


@contextmanager
def refusing() -> Iterator[str]:
    """The port is held, so that nobody else listens there."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield _url(held)


@contextmanager
def black_holed() -> Iterator[str]:
    """The queue of connections that nobody takes is full: the kernel drops what comes."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((HOST, 0))
        listening.listen(0)
        for _ in range(8):
            filling = stack.enter_context(socket.socket())
            filling.settimeout(0.1)
            try:
                filling.connect(listening.getsockname())
            except TimeoutError:
                break
        else:
            raise AssertionError("the queue is never full")
        yield _url(listening)


class Door:
    """`calls`: how many connections were made."""

    def __init__(self) -> None:
        self.calls = 0
        self.listening = socket.create_server((HOST, 0))
        self.url = _url(self.listening)

    def run(self) -> None:
        """Until it is shut."""
        with suppress(OSError):
            while True:
                taken, _ = self.listening.accept()
                self.calls += 1
                taken.close()


@contextmanager
def hanging_up() -> Iterator[Door]:
    """As a proxy does that has nobody behind it."""
    door = Door()
    thread = threading.Thread(target=door.run)
    thread.start()
    try:
        yield door
    finally:
        door.listening.shutdown(socket.SHUT_RDWR)
        door.listening.close()
        thread.join(10)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Goes on at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
