"""What makes the next start short: Kafka's classes in the form a JVM maps (JEP 350), and an empty formatted folder.

Both lie beside the jars. Classes are written by a broker that ends in peace and found none; where they do not fit,
Java passes over them.
"""

import base64
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from bridge.broker.ports import Java

_CLASSES = "classes.jsa"
_QUIET = ("-Xlog:cds*=error:stderr",)
_META = "meta.properties"
_IDS = ("cluster.id", "directory.id")


class StartCache:
    """Of these jars under this Java. What cannot be kept is not."""

    def __init__(self, jars: Path, java: Java) -> None:
        self._jars = jars
        real = java.path.resolve()
        self._java = hashlib.sha256(f"{real} {real.stat().st_mtime_ns}".encode()).hexdigest()[:12]

    @property
    def _formatted(self) -> Path:
        return self._jars.with_name(f"{self._jars.name}-formatted")

    @property
    def classes(self) -> Path:
        """Another Java cannot read them."""
        return self._jars.with_name(f"{self._jars.name}-{self._java}.jsa")

    def make_options(self, folder: Path | None) -> tuple[str, ...]:
        """For Java: to use the classes that are kept, or to leave its own in `folder`."""
        if self.classes.exists():
            return (f"-XX:SharedArchiveFile={self.classes}", *_QUIET)
        return () if folder is None else (f"-XX:ArchiveClassesAtExit={folder / _CLASSES}", *_QUIET)

    def take_classes(self, folder: Path, *, is_whole: bool) -> None:
        """What the broker has left there, which is kept if it was not killed meanwhile."""
        with suppress(OSError):
            if is_whole and (folder / _CLASSES).exists():
                _place(folder / _CLASSES, self.classes)
            (folder / _CLASSES).unlink(missing_ok=True)

    def copy_formatted(self, target: Path) -> bool:
        """An empty log folder with ids of its own; False if none is kept."""
        try:
            shutil.copytree(self._formatted, target)
            lines = (target / _META).read_text().splitlines()
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
            return False
        kept = [line for line in lines if not line.startswith(_IDS)]
        (target / _META).write_text("\n".join([*kept, *(f"{name}={make_uuid()}" for name in _IDS), ""]))
        return True

    def keep_formatted(self, source: Path) -> None:
        """A folder as Kafka's own tool has made it."""
        with suppress(OSError):
            _place(source, self._formatted)


def make_uuid() -> str:
    """As Kafka writes them; one that begins with a dash would be taken for an option."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")


def _place(source: Path, target: Path) -> None:
    """A copy, whole or not at all, whoever else does the same."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as folder:
        copy = Path(folder, target.name)
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
        copy.rename(target)
