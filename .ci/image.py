"""A small interpreter of Dockerfiles: makes a file system as they say, and runs commands in it as a container would.

There is no engine: namespaces and chroot of Linux do it, for root. Stood in for is what a registry would give: `FROM`
is this machine's programs and Python, read-only. An instruction that is not known here is an error.
"""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BASE_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
BASE_ETC = (
    *("pip.conf", "resolv.conf", "hosts", "nsswitch.conf", "login.defs"),
    *("ld.so.cache", "alternatives", "ssl", "ca-certificates", "fonts", "java-*"),
)
PASSWD, GROUP = "root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n"
OF_INSTALLERS = ("PIP_", "SSL_CERT_")  # where this machine's packages come from
INSTALLER_CACHE = Path(os.environ.get("PIP_CACHE_DIR") or Path.home() / ".cache" / "pip")


class NotBuilt(Exception):
    """What the Dockerfile says cannot be done, and why."""


@dataclass(slots=True)
class Limits:
    """What a container is kept from. `mounts`: files and folders of this machine, by their place in the container."""

    read_only: bool = False
    tmpfs: Sequence[str] = ()
    mounts: Mapping[str, Path] = field(default_factory=dict)


@dataclass(slots=True)
class Stage:
    """A file system and what an image says of the processes in it."""

    root: Path
    environment: dict[str, str]
    user: str = "0"
    folder: str = "/"
    entry_point: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    def words(self, words: Sequence[str], environment: Mapping[str, str], limits: Limits) -> list[str]:
        """The command that runs these words inside; it is the process itself, signals reach it."""
        variables = [f"{name}={value}" for name, value in {**self.environment, **environment}.items()]
        inside = [*self._as_user(), "env", "-i", f"--chdir={self.folder}", *variables, *words]
        script = "\n".join(["set -eu", *self._mounts(limits), f'exec chroot {shlex.quote(str(self.root))} "$@"'])
        return ["unshare", "--mount", "sh", "-c", script, "sh", *inside]

    def _as_user(self) -> list[str]:
        """Other users than root have no capability, and can get none."""
        if self.user == "0":
            return []
        entries = [line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines()]
        group = next((entry[3] for entry in entries if entry[2] == self.user), "0")
        ids = [f"--reuid={self.user}", f"--regid={group}", "--clear-groups"]
        return ["setpriv", *ids, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]

    def _mounts(self, limits: Limits) -> Iterator[str]:
        """Last the root's own protection: places to mount on must be made before."""
        yield f"mount --bind {shlex.quote(str(self.root))} {shlex.quote(str(self.root))}"
        for path in base_folders():
            yield f"mount --bind -o ro {path} {self._place(path, Path(path))}"
        for path in ("/proc", "/dev"):
            yield f"mount --rbind {path} {self._place(path, Path(path))}"
        for path in limits.tmpfs:
            yield f"mount -t tmpfs -o mode=1777 tmpfs {self._place(path, self.root)}"
        for path, source in limits.mounts.items():
            yield f"mount --bind {shlex.quote(str(source))} {self._place(path, source)}"
        if limits.read_only:
            yield f"mount -o remount,bind,ro {shlex.quote(str(self.root))}"

    def _place(self, path: str, source: Path) -> str:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        return shlex.quote(str(place))


class Build:
    """Follows one Dockerfile. `context`: the folder that it copies from, `scratch`: an empty one of this build."""

    def __init__(self, dockerfile: Path, context: Path, scratch: Path) -> None:
        self._dockerfile = dockerfile
        self._context = context
        self._scratch = scratch
        self._sent = Sent(context)
        self._stages: dict[str, Stage] = {}

    def run(self) -> Stage:
        """The last stage. Raises NotBuilt."""
        for number, (name, rest) in enumerate(instructions(self._dockerfile.read_text())):
            print(f"{self._dockerfile.name}: {name} {rest}", flush=True)
            if name == "FROM":
                name_of_stage = re.fullmatch(r"\S+(?: +AS +(\S+))?", rest, re.IGNORECASE)
                self._stages[(name_of_stage and name_of_stage[1]) or f"#{number}"] = self._new_stage(number)
            elif act := getattr(self, f"_{name.lower()}", None):
                act(self._stage, rest)
            else:
                raise NotBuilt(f"{name} is not understood here")
        return self._stage

    @property
    def _stage(self) -> Stage:
        return list(self._stages.values())[-1]

    def _new_stage(self, number: int) -> Stage:
        root = self._scratch / f"root-{number}"
        for folder in ("etc", "home", "opt", "root", "run", "srv", "var/lib"):
            (root / folder).mkdir(parents=True)
        for folder in ("tmp", "var/tmp"):
            (root / folder).mkdir(mode=0o1777)
            (root / folder).chmod(0o1777)
        for path in map(Path, BASE_PATHS):
            if path.is_symlink():
                (root / path.name).symlink_to(path.readlink())
        for source in [path for pattern in BASE_ETC for path in Path("/etc").glob(pattern)]:
            target = root / "etc" / source.name
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True)
            else:
                shutil.copy(source, target)
        (root / "etc/passwd").write_text(PASSWD)
        (root / "etc/group").write_text(GROUP)
        return Stage(root, {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})

    def _copy(self, stage: Stage, rest: str) -> None:
        *sources, target = [word for word in rest.split() if not word.startswith("--")]
        origin = re.match(r"--from=(\S+)", rest)
        place = stage.root / (Path(stage.folder) / target).as_posix().lstrip("/")
        for source in sources:
            found = self._stages[origin[1]].root / source.lstrip("/") if origin else self._sent.find(source)
            if found.is_dir():
                ignore, copy = (None, os.link) if origin else (self._sent.left_out, shutil.copy2)  # links: much faster
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True, ignore=ignore, copy_function=copy)
            else:
                is_folder = len(sources) > 1 or target.endswith("/")
                file = place / found.name if is_folder else place
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, file)

    def _run(self, stage: Stage, rest: str) -> None:
        if rest.startswith("apt-get "):
            print("what this machine has of that stands in for it", flush=True)
            return
        variables = {name: value for name, value in os.environ.items() if name.startswith(OF_INSTALLERS)}
        mounts = {value: Path(value) for value in variables.values() if value.startswith("/") and Path(value).is_dir()}
        INSTALLER_CACHE.mkdir(parents=True, exist_ok=True)
        mounts["/var/cache/pip"] = INSTALLER_CACHE
        environment = {"HOME": "/root", **variables, "PIP_CACHE_DIR": "/var/cache/pip"}
        done = subprocess.run(stage.words(["sh", "-c", rest], environment, Limits(mounts=mounts)), check=False)
        if done.returncode:
            raise NotBuilt(f"RUN {rest}: exit code {done.returncode}")

    def _env(self, stage: Stage, rest: str) -> None:
        for word in shlex.split(rest):
            name, value = word.split("=", 1)
            stage.environment[name] = re.sub(r"\$(\w+)", lambda found: stage.environment.get(found[1], ""), value)

    def _workdir(self, stage: Stage, rest: str) -> None:
        stage.folder = (Path(stage.folder) / rest).as_posix()
        (stage.root / stage.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _user(self, stage: Stage, rest: str) -> None:
        stage.user = rest

    def _expose(self, stage: Stage, rest: str) -> None:
        stage.ports += [int(word) for word in rest.split()]

    def _stopsignal(self, stage: Stage, rest: str) -> None:
        if rest != "SIGTERM":
            raise NotBuilt(f"{stage.root.name}: the bridge ends itself at SIGTERM, not at {rest}")

    def _healthcheck(self, stage: Stage, rest: str) -> None:
        stage.health_check = json.loads(rest.split("CMD", 1)[1])

    def _entrypoint(self, stage: Stage, rest: str) -> None:
        stage.entry_point = json.loads(rest)

    def _cmd(self, stage: Stage, rest: str) -> None:
        stage.command = json.loads(rest)


class Sent:
    """The files that .dockerignore lets through: the last pattern that fits a path or a folder above it decides."""

    def __init__(self, context: Path) -> None:
        self._context = context
        ignored = (context / ".dockerignore").read_text().splitlines()
        self._patterns = [line.strip().rstrip("/") for line in ignored if line.strip() and not line.startswith("#")]

    def find(self, source: str) -> Path:
        """A file or folder of the context. Raises NotBuilt."""
        path = self._context / source.rstrip("/")
        if not path.exists() or not self._is_sent(path):
            raise NotBuilt(f"COPY {source}: not there, or left out by .dockerignore")
        return path

    def left_out(self, folder: str, names: list[str]) -> set[str]:
        """Those of a folder that are not sent, as `shutil.copytree` asks."""
        return {name for name in names if not self._is_sent(Path(folder) / name)}

    def _is_sent(self, path: Path) -> bool:
        relative = path.relative_to(self._context)
        names = [relative.as_posix(), *[parent.as_posix() for parent in relative.parents][:-1]]
        is_sent = True
        for pattern in self._patterns:
            wanted = pattern.removeprefix("!")
            if any(fnmatch.fnmatch(name, form) for name in names for form in (wanted, wanted.removeprefix("**/"))):
                is_sent = pattern.startswith("!")
        return is_sent


def base_folders() -> list[str]:
    """What the base image has: this machine's programs and the Python that runs this."""
    folders = [path for path in BASE_PATHS if Path(path).is_dir() and not Path(path).is_symlink()]
    return folders if sys.base_prefix.startswith("/usr") else [*folders, sys.base_prefix]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Name and the rest of each, without comments, continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        if line.strip():
            name, rest = line.split(maxsplit=1)
            yield name.upper(), rest.strip()
