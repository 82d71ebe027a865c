"""The way from callback URLs into the bridge's own network, in a network namespace with a name server that lies."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.source_tree import ROOT

_UNSHARE = ["unshare", "--net", "--mount"]


def can_make_networks() -> bool:
    """Where nobody may (a container without rights), there is no such test."""
    command = [*_UNSHARE, "ip", "tuntap", "add", "dev", "out", "mode", "tun"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


if can_make_networks():

    def test_no_packet_goes_where_none_may_go(tmp_path: Path) -> None:
        """Of addresses in every spelling, names that lead inwards, alone, beside a public one or at the second
        question, and redirects: none makes the bridge send anything to an address that is not public.
        """
        told = tmp_path / "report.json"
        command = [*_UNSHARE, sys.executable, "-m", "tests.attack.inner_network", str(told)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        report = json.loads(told.read_text())
        assert report["calls"] >= 300
        assert report["inward"] == {}
        assert report["reached"] == []
        assert set(report["redirected"]) == {"redirect"}
        assert report["far"][0] == "timeout"
        assert report["far"][1] > 0  # a public address is called
        assert report["control"].keys() == {"127.0.0.1"}  # and the witness sees what goes inwards
