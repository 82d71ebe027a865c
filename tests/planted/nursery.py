"""Runs pytest for one bug after the other, each in a fork that has loaded libraries already, and nothing of the bridge.

Started in a copy of the code. Each line of its input names, as JSON, what pytest is to run; each line of its output is
the exit code (-1: not over in time) and what pytest has printed.
"""

import json
import os
import select
import signal
import sys
import tempfile
from importlib import import_module

import pytest

_LIBRARIES = (
    "aiohttp.web", "alembic.command", "anyio", "confluent_kafka.admin", "cryptography.x509", "fastapi.testclient",
    "httpx2", "hypothesis.stateful", "joserfc.jwt", "msgspec", "opentelemetry.trace", "prometheus_client", "psutil",
    "psycopg", "pydantic_settings", "pymysql", "rich", "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.ext.asyncio", "sqlalchemy.orm", "standardwebhooks", "structlog", "typer",
    "uvicorn",
)  # fmt: skip
_ARGUMENTS = ("-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
_MOST_S = 600


def main() -> None:
    for name in _LIBRARIES:
        import_module(name)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_run(json.loads(line))) + "\n")
        sys.stdout.flush()


def _run(layer: str) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.exit(pytest.main([*_ARGUMENTS, layer]))
        code = _wait(child)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _wait(child: int) -> int:
    ended, is_over = os.pidfd_open(child), False
    try:
        is_over = bool(select.select([ended], [], [], _MOST_S)[0])
    finally:
        os.close(ended)
        if not is_over:  # a bug may never come to an end, and a person may end this
            os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if is_over else -1


if __name__ == "__main__":
    main()
