"""Apache Kafka's jars: fetched once from Maven Central, pinned by SHA-256, kept in a cache folder.

The cache folder appears whole or not at all: files are gathered in a folder beside it, checked against
the pins, and renamed. One process gathers at a time; a kill in the middle costs only the jar in flight.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bridge.broker.ports import BrokerError, CacheUnusable, FileLock, JarCorrupt, JarsUnavailable

_TRIES = 3
_REQUEST_TIMEOUT_S = 30
_REMEDY = (
    "Check the network and HTTPS_PROXY and try again (what was fetched is kept), "
    "or copy the cache folder from a machine that has it, or use an existing Kafka with --kafka HOST:PORT."
)

_NOT_INSTALLED = "pip install 'outbox-bridge[local-kafka]', or use an existing Kafka with --kafka HOST:PORT."


@dataclass(frozen=True, slots=True)
class MavenRepository:
    """Maven Central, or the repository at `url`; `local` is Maven's own cache on this machine."""

    url: str | None = None
    local: Path | None = None

    def local_path(self, repository_path: str) -> Path:
        """Where Maven keeps this file if it ever fetched it. Raises JarsUnavailable where jgo is not installed."""
        try:
            from jgo.constants import default_maven_repo  # noqa: PLC0415  # slow to import, needed once a machine
        except ModuleNotFoundError as error:
            raise JarsUnavailable("jgo, which fetches Kafka, is not installed", _NOT_INSTALLED) from error
        return (self.local or Path(default_maven_repo())) / repository_path

    def download(self, repository_path: str, sha256: str, scratch: Path) -> Path:
        """The checked file, somewhere in `scratch`, which is emptied first. Raises JarsUnavailable, JarCorrupt."""
        failure: BrokerError | None = None
        for _ in range(_TRIES):
            # jgo takes a file that a broken download left for a good one
            shutil.rmtree(scratch, ignore_errors=True)
            try:
                return self._download_once(repository_path, sha256, scratch)
            except (JarsUnavailable, JarCorrupt) as error:
                failure = error
        assert failure is not None
        raise failure

    def _download_once(self, repository_path: str, sha256: str, scratch: Path) -> Path:
        try:
            path = self._fetch(repository_path, scratch)
        except RuntimeError as error:  # jgo: no such file, or not the repository's SHA-1
            raise JarsUnavailable(f"{repository_path}: {error}", _REMEDY) from error
        except OSError as error:
            if error.errno is not None:  # of the disk; those of requests have no number
                raise
            raise JarsUnavailable(f"{repository_path} could not be downloaded: {error}", _REMEDY) from error
        if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise JarCorrupt(f"{repository_path} is not the file that was pinned (SHA-256 differs)", _REMEDY)
        return path

    def _fetch(self, repository_path: str, scratch: Path) -> Path:
        from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415
        from jgo.maven import MavenContext  # noqa: PLC0415

        *group, artifact, version, _ = PurePosixPath(repository_path).parts
        context = MavenContext(
            repo_cache=scratch, remote_repos={"source": self.url or MAVEN_CENTRAL_URL}, timeout=_REQUEST_TIMEOUT_S
        )
        return Path(context.project(".".join(group), artifact).at_version(version).artifact().resolve())


KAFKA_VERSION = "4.3.1"
_PIN_FILE = Path(__file__).with_name(f"kafka-{KAFKA_VERSION}.sha256")
_RECORD_NAME = "verified.json"


@dataclass(frozen=True, slots=True)
class PinnedJar:
    """A jar by its path in a Maven repository, and the only content that is accepted."""

    repository_path: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name in the cache folder."""
        return self.repository_path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """`fetched` of `total` jars are there; `name` is the one that came last."""

    fetched: int
    total: int
    name: str


Report = Callable[[FetchProgress], None]


@dataclass(frozen=True, slots=True)
class JarSet:
    """What belongs into a cache folder and where it comes from."""

    pins: tuple[PinnedJar, ...]
    repository: MavenRepository


def default_jar_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`outbox-bridge/kafka-VERSION` in XDG_CACHE_HOME, which is `~/.cache` if not set."""
    root = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "outbox-bridge" / f"kafka-{KAFKA_VERSION}"


def parse_pins(text: str) -> tuple[PinnedJar, ...]:
    """Lines as `sha256sum` writes them."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line)
    return tuple(PinnedJar(path, digest) for digest, path in pairs)


def kafka_jars() -> JarSet:
    """The jars of Apache Kafka in the version this package is made for."""
    return JarSet(parse_pins(_PIN_FILE.read_text()), MavenRepository())


def fetch_jars(folder: Path | None = None, report: Report | None = None, jars: JarSet | None = None) -> Path:
    """The folder with exactly the pinned jars; `report` is called only while they are being fetched.

    Raises JarsUnavailable, JarCorrupt, CacheUnusable.
    """
    folder, jars = (folder or default_jar_folder()).absolute(), jars or kafka_jars()
    if _is_verified(folder, jars.pins):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not _is_verified(folder, jars.pins):
                _gather(folder, jars, report or _report_nothing)
    except OSError as error:
        remedy = "Free space there or choose another cache with XDG_CACHE_HOME."
        raise CacheUnusable(f"{folder} cannot be written: {error}", remedy) from error
    return folder


def _gather(folder: Path, jars: JarSet, report: Report) -> None:
    # a folder given by mistake must not be emptied
    strangers = [path.name for path in _files(folder) if path.suffix != ".jar" and path.name != _RECORD_NAME]
    if strangers:
        remedy = "Choose an empty or new folder for the jars."
        raise CacheUnusable(f"{folder} holds other files ({strangers[0]})", remedy)
    staging = folder.with_name(folder.name + ".partial")
    staging.mkdir(exist_ok=True)
    for number, pin in enumerate(jars.pins, start=1):
        _provide(pin, staging, folder, jars.repository)
        report(FetchProgress(number, len(jars.pins), pin.name))
    _remove_strangers(staging, jars.pins)
    (staging / _RECORD_NAME).write_text(json.dumps(_stamps(staging, jars.pins)))
    if folder.exists():
        shutil.rmtree(folder)
    staging.rename(folder)


def _provide(pin: PinnedJar, staging: Path, folder: Path, repository: MavenRepository) -> None:
    """Puts the jar into `staging`: from an interrupted fetch, an old cache, Maven's own cache, or the network."""
    wanted = staging / pin.name
    if _has_digest(wanted, pin.sha256):
        return
    for old in (folder / pin.name, repository.local_path(pin.repository_path)):
        if _has_digest(old, pin.sha256):
            shutil.copyfile(old, wanted)
            return
    scratch = staging / "scratch"
    repository.download(pin.repository_path, pin.sha256, scratch).replace(wanted)
    shutil.rmtree(scratch)


def _remove_strangers(staging: Path, pins: Iterable[PinnedJar]) -> None:
    names = {pin.name for pin in pins}
    for path in _files(staging):
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_verified(folder: Path, pins: tuple[PinnedJar, ...]) -> bool:
    """Names, sizes and times are those noted after the full check; cheap, for every start."""
    try:
        noted = json.loads((folder / _RECORD_NAME).read_text())
        names = {path.name for path in _files(folder)} - {_RECORD_NAME}
        return names == {pin.name for pin in pins} and bool(noted == _stamps(folder, pins))
    except (OSError, ValueError):
        return False


def _stamps(folder: Path, pins: Iterable[PinnedJar]) -> dict[str, list[object]]:
    """By name: the pin, the size, the time of the last change."""
    stats = {pin: (folder / pin.name).stat() for pin in pins}
    return {pin.name: [pin.sha256, stat.st_size, stat.st_mtime_ns] for pin, stat in stats.items()}


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _has_digest(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _report_nothing(_: FetchProgress) -> None:
    """Ignores progress."""
