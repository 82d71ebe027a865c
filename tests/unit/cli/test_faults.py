"""`fault-points`, and who obeys `OUTBOX_BRIDGE_FAULT`."""

import json
from pathlib import Path

import pytest

from bridge.fault_points import FaultPoint
from tests.unit.cli.conftest import Cli


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine reach a test."""
    monkeypatch.chdir(tmp_path)


def test_points_are_listed_with_meaning_and_role(cli: Cli) -> None:
    """All of them, in either form."""
    ended = cli("fault-points", "-o", "json")
    listed = json.loads(ended.out)
    assert [point["name"] for point in listed] == [point.name for point in FaultPoint]
    assert {"role", "meaning"} < listed[0].keys()
    lines = cli("fault-points").out.splitlines()
    assert len(lines) == 1 + len(FaultPoint)


@pytest.mark.parametrize(
    "command", [("serve",), ("migrate",), ("projection", "rebuild"), ("dev", "--ephemeral"), ("config", "show")]
)
def test_fault_without_the_flag_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """A variable left behind in an environment must not kill production."""
    monkeypatch.setenv("OUTBOX_BRIDGE_FAULT", "SETTLE_READ")
    ended = cli(*command)
    assert ended.code == 2
    assert "--allow-faults" in ended.err


@pytest.mark.parametrize("command", [("serve",), ("migrate",), ("projection", "rebuild")])
def test_unknown_point_is_refused_with_what_comes_near(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Before anything is started."""
    monkeypatch.setenv("OUTBOX_BRIDGE_FAULT", "SETTLE_RED")
    ended = cli(*command, "--allow-faults")
    assert ended.code == 2
    assert "did you mean SETTLE_READ" in ended.err
