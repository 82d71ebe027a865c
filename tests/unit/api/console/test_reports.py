"""Reports of reconciliation as pages: read with bounds, from the folder of the settings and nowhere else."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.whole_bridge import WholeBridge

ID = "0206k8e9s5ta7vo3q1m4c8b2h6dg"
HOSTILE = "<script>alert(1)</script>\u202e"
REMARK = "remarked<img src=x onerror=alert(1)>\u2066\u2028" + "é" * 470  # of an older run there is none


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: one that found nothing, one with 250 findings, one whose files are of somebody else's making."""
    write_run(tmp_path, 1, 0, "Nothing is wrong.", [])
    found = {"transaction_id": ID, "kind": "MISSING", "detail": HOSTILE}
    findings = [{**found, "group": f"g-{n}", **({"remark": REMARK} if n % 2 else {})} for n in range(250)]
    write_run(tmp_path, 2, 1, HOSTILE, findings)
    write_run(tmp_path, 3, 0, "x", [])
    (tmp_path / "000003" / "summary.json").write_text("[" * 100_000)
    (tmp_path / "000003" / "findings.jsonl").write_text("1" * 600_000)
    (tmp_path / "ledger.json").write_text(json.dumps({"runs": [{"run": n} for n in (1, 2, 3, "../x", -1)]}))
    return tmp_path


def write_run(folder: Path, number: int, code: int, sentence: str, findings: list[dict[str, Any]]) -> None:
    run = folder / f"{number:06d}"
    run.mkdir()
    window, found = {"taken_at": "2026-01-31T12:00:00.000Z"}, {"total": len(findings)}
    summary = {"exit_code": code, "sentence": sentence, "window": window, "findings": found}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "findings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in findings))


@pytest.fixture
def bridge(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[WholeBridge]:
    """One that knows the folder."""
    with WholeBridge(tmp_path_factory.mktemp("bridge"), {"orders": 1}, reports=folder) as running:
        yield running


def page_of(bridge: WholeBridge, path: str) -> str:
    return bridge.call("GET", f"/console/{path}").body.decode()


def test_runs_are_listed_newest_first_with_their_verdict(bridge: WholeBridge) -> None:
    """Also one whose summary is damaged; what the ledger names in another way is no run."""
    page = page_of(bridge, "reports")
    assert [word in page for word in ("000001", "000002", "000003", "../x", "-00001")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert page.index("000003") < page.index("000002") < page.index("000001")
    assert [word in page for word in (">pass<", ">findings<", ">unreadable<")] == [True] * 3
    assert "<script>alert" not in page


def test_findings_lead_to_their_transactions_page_by_page(bridge: WholeBridge) -> None:
    """As text, whatever they hold."""
    seen, remarks, path = 0, 0, "reports/000002"
    while path:
        page = page_of(bridge, path)
        seen += page.count(f'href="../transactions/{ID}"')
        remarks += page.count("remarked&lt;img src=x onerror=alert(1)&gt;\\u2066\\u2028")
        assert not [bad for bad in ("<script>alert", "<img", "\u202e", "\u2066", "\u2028") if bad in page]
        _, mark, rest = page.partition('rel="next" href="../')
        path = rest.partition('"')[0] if mark else ""
    assert (seen, remarks) == (250, 125)
    assert "None." in page_of(bridge, "reports/000001")


def test_damaged_files_are_said_to_be_so(bridge: WholeBridge) -> None:
    """Nests of a hundred thousand brackets and a line of half a megabyte."""
    assert "They cannot be read" in page_of(bridge, "reports/000003")


@pytest.mark.parametrize(
    "path",
    [
        "reports/000004",
        "reports/..",
        "reports/%2e%2e",
        "reports/000002%2f..%2f000001",
        "reports/0",
        "reports/000002%00",
    ],
)
def test_only_runs_of_the_ledger_are_shown(bridge: WholeBridge, path: str) -> None:
    """No path leads out of the folder."""
    assert bridge.call("GET", f"/console/{path}").status == 404


def test_links_and_pipes_are_not_followed(bridge: WholeBridge, folder: Path) -> None:
    """They would lead to another file, or never end."""
    secret = folder / "secret"
    secret.write_text(json.dumps({"transaction_id": "secret-id", "kind": "x"}) + "\n")
    findings = folder / "000002" / "findings.jsonl"
    findings.unlink()
    findings.symlink_to(secret)
    summary = folder / "000001" / "summary.json"
    summary.unlink()
    os.mkfifo(summary)
    page = page_of(bridge, "reports/000002")
    assert ("secret-id" in page, "They cannot be read" in page) == (False, True)
    assert "000001" in page_of(bridge, "reports")


@pytest.mark.parametrize("place", ["x", "-1", "9" * 5_000, "1e3"])
def test_place_in_the_findings_is_a_number(bridge: WholeBridge, place: str) -> None:
    """Else 422; beyond the end there are none."""
    assert bridge.call("GET", f"/console/reports/000002?from={place}").status == 422
    assert "None more." in page_of(bridge, "reports/000002?from=999999999999999999")


def test_without_a_folder_the_page_says_how_to_name_it(tmp_path: Path) -> None:
    """Nothing has run, or elsewhere."""
    with WholeBridge(tmp_path, {"orders": 1}) as running:
        assert "http.reports" in page_of(running, "reports")
        assert running.call("GET", "/console/reports/000001").status == 404
