"""A real PgBouncer before a real PostgreSQL, on a socket in a folder of its own. No network."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.postgres import PostgresServer

_POOLER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
_PORT = 5432  # of no network: it names the socket, as PostgreSQL's own
_START_SECONDS = 30
_CONFIG = """
[databases]
* = host={host} user={user}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
logfile = {folder}/log
pidfile = {folder}/pid
"""


class Pooler:
    """Debian's package pgbouncer. `size`: connections to the server, which all clients share."""

    def __init__(self, server: PostgresServer, mode: str, size: int) -> None:
        """`mode`: session or transaction. Skips the test, by name, where PgBouncer is not installed."""
        if _POOLER is None:
            pytest.skip("PgBouncer is not installed (pgbouncer)")
        self.mode = mode
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-"))
        given = server.settings
        config = self._folder / "ini"
        values = {"host": given["PGHOST"], "user": given["PGUSER"], "port": _PORT, "folder": self._folder}
        config.write_text(_CONFIG.format(**values, mode=mode, size=size))
        command = [_POOLER, str(config)]
        if os.geteuid() == 0:  # it refuses to be root, as PostgreSQL does
            owner = pwd.getpwuid(Path(given["PGHOST"]).stat().st_uid)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
            command += ["--user", owner.pw_name]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._await_start()

    def url_of(self, url: str) -> str:
        """The way to the same database through it."""
        return sa.make_url(url).set(query={"host": str(self._folder)}).render_as_string(hide_password=False)

    def close(self) -> None:
        """At once."""
        self._process.kill()
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_start(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.connect(str(self._folder / f".s.PGSQL.{_PORT}"))
                return
            if self._process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"PgBouncer does not start: {(self._folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)
