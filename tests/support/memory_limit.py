"""A limit on a process's memory, and how much it has taken.

with limited_memory(512 * MIB) as prefix:
    process = subprocess.Popen([*prefix, sys.executable, ...])
    ...
    peak_bytes(process.pid)
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 1024 * 1024
_GROUPS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """A file that takes process ids: the kernel kills these above the limit. None where we may not set one."""
    for root, limit in _GROUPS.items():
        folder = root / f"outbox-bridge-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(limit_bytes))
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            continue
        try:
            yield folder / "cgroup.procs"
        finally:
            with suppress(OSError):
                folder.rmdir()
        return
    yield None


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Sequence[str]]:
    """What to put before a command, so that the kernel kills it above the limit; nothing where we may not set one."""
    with memory_group(limit_bytes) as group:
        yield () if group is None else ("sh", "-c", f'echo $$ > {group} && exec "$@"', "sh")


def peak_bytes(pid: int) -> int:
    """The most that has been resident at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
