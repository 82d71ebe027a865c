"""Structs in a file, one JSON line each; whatever kills the writer leaves all lines but the last one whole."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_SEAL = b"~\n"  # ends a torn line; no JSON object ends so


class LineWriter:
    """Appends; a line is one write, so it is in the kernel when `write` returns. Seals what a killed one left."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._encode = msgspec.json.Encoder().encode
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, _SEAL)

    def write(self, entry: msgspec.Struct) -> None:
        """One more line."""
        os.write(self._file, self._encode(entry) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class LineReader(Generic[T]):
    """The entries of some files, file by file, read anew in each iteration. `torn`: lines that end in the middle."""

    def __init__(self, entry_type: Any, *paths: Path) -> None:
        self._decode = msgspec.json.Decoder(entry_type).decode
        self._paths = paths
        self.torn = 0

    def __iter__(self) -> Iterator[T]:
        """Raises ValueError for a line that is whole and cannot be read."""
        self.torn = 0
        for path in self._paths:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.endswith(b"\n") or line.endswith(_SEAL):
                        self.torn += 1
                        continue
                    try:
                        yield self._decode(line)
                    except msgspec.MsgspecError as error:
                        raise ValueError(f"{path.name} line {number}: {error}") from error
