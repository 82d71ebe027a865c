"""A real MariaDB server on a socket in a folder of its own, for as long as it is needed. No network."""

import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from tests.support.removal import remove_beside

_INSTALL = shutil.which("mariadb-install-db")
_SERVER = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
_START_SECONDS = 60
_OPTIONS = ("--skip-networking", "--innodb-buffer-pool-size=64M")


class MariaServer:
    """Debian's packages: mariadb-server-core and mariadb-client-core. `is_durable`: with MariaDB's own setting."""

    def __init__(self, *, is_durable: bool = False) -> None:
        """Skips the test, by name, where MariaDB is not installed."""
        if _INSTALL is None or _SERVER is None:
            pytest.skip("MariaDB is not installed (mariadbd, mariadb-install-db)")
        self._folder = Path(tempfile.mkdtemp(prefix="mdb-"))
        self.socket = self._folder / "socket"
        self._numbers = itertools.count()
        # (A server that starts removes other servers' temporary tables from a folder that they share.)
        temporary = self._folder / "tmp"
        temporary.mkdir()
        shared = ("--no-defaults", f"--datadir={self._folder / 'data'}", f"--tmpdir={temporary}", "--user=root")
        command = (_INSTALL, *shared, "--auth-root-authentication-method=normal", "--skip-test-db")
        made = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert made.returncode == 0, made.stdout
        durable = "--innodb-flush-log-at-trx-commit=" + ("1" if is_durable else "0")
        self._command = (_SERVER, *shared, f"--socket={self.socket}", *_OPTIONS, durable)
        self.start()

    def kill(self) -> None:
        """SIGKILL; `start` brings it back with its data."""
        self._process.kill()
        self._process.wait(30)

    def start(self) -> None:
        """Returns when it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        self._await_start()

    def create(self) -> str:
        """The name of a new database."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name}")
        return name

    def url_of(self, name: str, driver: str) -> str:
        return f"mariadb+{driver}://root@localhost/{name}?unix_socket={self.socket}"

    def close(self) -> None:
        """At once: nothing of it is needed any more."""
        self.kill()
        remove_beside(self._folder)

    def _await_start(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.connect(str(self.socket))
                if probe.recv(1):  # a server that is up speaks first
                    return
            if self._process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"MariaDB does not start: {(self._folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)

    def _execute(self, statement: str) -> None:
        with pymysql.connect(unix_socket=str(self.socket), user="root") as connection, connection.cursor() as cursor:
            cursor.execute(statement)
