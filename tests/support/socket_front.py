"""A TCP port before a server that listens on a Unix socket only: Java knows no Unix sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK = 65_536


@contextmanager
def tcp_front(path: Path) -> Iterator[int]:
    """The port; what connects there talks to the server behind `path`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, path), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, path: Path) -> None:
    with suppress(OSError):  # closed: nobody wants it any more
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(path))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
