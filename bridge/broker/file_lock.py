"""A lock between processes that the system frees when its holder dies, so it can never be stale."""

import fcntl
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO


class FileLock:
    """Exclusive while held. The file stays behind: deleting it would let two processes hold it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def take(self, *, wait: bool = True) -> bool:
        """Whether it is ours now; False only with `wait=False`, if another process holds it."""
        file = self._path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def free(self) -> None:
        """Lets go; harmless if not held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
