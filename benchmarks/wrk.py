"""Single calls from `wrk`, which takes far less of the shared processors than a client in Python."""

import shutil
import subprocess
from pathlib import Path

from benchmarks.load import Load

_SCRIPT = Path(__file__).with_suffix(".lua")
_LAST_S = 2  # for what is prepared when the time is over


def has_wrk() -> bool:
    """Whether Debian's package `wrk` is installed."""
    return shutil.which("wrk") is not None


def load_wrk(port: int, topic: str, connections: int, seconds: int, bytes_: int = 300) -> Load:
    """As `load_singles`, without latencies. Raises RuntimeError for the first answer that is not as it should be."""
    command = ("wrk", "-t1", f"-c{connections}", f"-d{seconds + _LAST_S}", "-s", str(_SCRIPT))
    target = (f"http://127.0.0.1:{port}", "--", topic, str(bytes_), str(seconds))
    printed = subprocess.run((*command, *target), capture_output=True, check=True, text=True).stdout
    settled, wrong = (line.partition(" ")[2] for line in printed.splitlines()[-2:])
    if wrong:
        raise RuntimeError(f"wrk: {wrong}")
    return Load(int(settled), seconds, ())
