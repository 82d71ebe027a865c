"""What runs of many processes leave in files: what their clients must know, and in the end a report."""

from pathlib import Path
from typing import Self

import msgspec


class RunOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What the client processes of a run must know; a file of JSON in the run's folder."""

    place: str
    seed: int
    urls: tuple[str, ...]

    @classmethod
    def read(cls, path: str) -> Self:
        """What `write` wrote."""
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)

    @property
    def folder(self) -> Path:
        """Of the run; all its files are there."""
        return Path(self.place)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / "run.json"

    def write(self) -> None:
        """For `read`."""
        self.path.write_bytes(msgspec.json.encode(self))


class RunReport(msgspec.Struct, kw_only=True):
    """What a run did and found. `broken`: why it failed."""

    broken: list[str]

    @property
    def is_good(self) -> bool:
        return not self.broken

    def write(self, folder: Path, name: str, text: str) -> None:
        """NAME.json, and NAME.md with `text`: the same for people."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        (folder / f"{name}.md").write_text(text)
