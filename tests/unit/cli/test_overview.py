"""api.cli.transactions: the whole bridge at a glance."""

import json
import subprocess
import sys

from tests.support.canned_http import CannedServer
from tests.support.source_tree import ROOT
from tests.unit.cli.conftest import Cli

COUNTS = {
    "prepared": 9, "pending": 2, "committed": 5, "blocked": 1, "abandoned": 0, "rolled_back": 1, "parked": 1,
    "oldest_pending_seconds": 3.5,
}  # fmt: skip
STATS = COUNTS | {"settle_lag_seconds": 0.1, "projection_lag_seconds": 0.2}


def test_stats_are_a_line_a_group_and_their_sum(cli: Cli, bridge: CannedServer) -> None:
    """For one group the sum would say the same again."""
    bridge.answer("GET", "/v1/stats", 200, STATS | {"groups": {"shop": COUNTS, "bank": COUNTS}})
    bridge.answer("GET", "/v1/stats", 200, STATS | {"groups": {"shop": COUNTS}})
    lines = [line.split() for line in cli("stats", "--url", bridge.url).out.splitlines()]
    assert lines[0] == ["settle", "lag", "seconds", "0.1"]
    assert [line[0] for line in lines[3:]] == ["bank", "shop", "all"]
    assert lines[3][1:] == ["9", "2", "5", "1", "0", "1", "1", "3.5"]
    assert [line.split()[0] for line in cli("stats", "--url", bridge.url).out.splitlines()][3:] == ["shop"]


def test_version_is_told(cli: Cli) -> None:
    """As a word, and for programs."""
    number = cli("version").out.split()[-1]
    assert json.loads(cli("version", "-o", "json").out) == {"version": number}


def test_commands_start_without_what_few_of_them_need() -> None:
    """Each import here is waited for by every command, a help text too."""
    code = "import sys, api.cli.main; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    slow = {"aiohttp", "alembic", "confluent_kafka", "fastapi", "matplotlib", "pyspark", "sqlalchemy", "uvicorn"}
    assert slow & set(loaded.split()) == set()
