"""Folders of thousands of files, removed while nobody waits."""

import os
from pathlib import Path


def remove_beside(folder: Path) -> None:
    """By a process of its own, which goes on when this one has ended: a run's last worker would wait for a minute."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawnp("rm", ["rm", "-rf", "--", str(folder)], os.environ, file_actions=quiet, setpgroup=0)
