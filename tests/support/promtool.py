"""What Prometheus' own tool says of rules, fed with series as a running bridge shows them."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

ALERTS = Path("docker/helm/files/alerts.yml").absolute()
_JOB = "outbox-bridge"
_MINUTES = 90


@dataclass(frozen=True, slots=True)
class Scrape:
    """Series of all processes at one moment. A process that does not answer has none but `up`."""

    at_s: float
    series: Mapping[str, float]


def parse_scrape(at_s: float, texts: Mapping[str, str | None]) -> Scrape:
    """`texts`: what each instance showed; None if it did not answer. Prometheus' tool judges 90 minutes after 1970."""
    series: dict[str, float] = {}
    for instance, text in texts.items():
        base = {"instance": instance, "job": _JOB}
        series[_name("up", base)] = float(text is not None)
        for family in text_string_to_metric_families(text or ""):
            for sample in family.samples:
                shift_s = _MINUTES * 60 - time.time() if sample.name.endswith("_end_seconds") else 0.0
                series[_name(sample.name, {**sample.labels, **base})] = sample.value + shift_s
    return Scrape(at_s, series)


def find_promtool() -> str:
    """The tool, or the test is skipped."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def find_firing(before: Scrape, after: Scrape, folder: Path) -> set[str]:
    """The alerts that fire if it goes on, for an hour and a half, as it went from one scrape to the other."""
    minutes = (after.at_s - before.at_s) / 60
    lines = [
        {"series": name, "values": f"{value}{(value - before.series.get(name, 0.0)) / minutes:+f}x{_MINUTES}"}
        for name, value in after.series.items()
    ]
    return judge_series(lines, folder)


def judge_series(lines: Sequence[Mapping[str, str]], folder: Path) -> set[str]:
    """The alerts that fire after an hour and a half. `lines`: `series` and its `values`, one a minute."""
    alerts = [{"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{_MINUTES}m"}]
    test = {"interval": "1m", "input_series": lines, "promql_expr_test": alerts}
    file = folder / "alerts_test.json"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    command = [find_promtool(), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return set()
    assert "got:" in said, said  # nothing was expected: it says what it found instead
    return set(re.findall(r'alertname=\\?"(\w+)\\?"', said.partition("got:")[2]))


def _name(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in labels.items())}}}"
