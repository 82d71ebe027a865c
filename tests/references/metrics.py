"""docs/reference/metrics.md: every metric that a bridge shows: python -m tests.references.metrics URL, of a bridge as
`outbox-bridge dev` starts it."""

import re
import sys
import urllib.request
from collections.abc import Iterable

from tests.references.markdown import MADE, code, table
from tests.support.source_tree import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"
Row = tuple[str, str, str]

_INTRODUCTION = """# Metrics

`GET /metrics` of every process, in Prometheus' text format. A process shows what its roles have, that of `remoting`
what begins with `outbox_bridge_remoting_`; times are in seconds. Where it shows a certificate,
`outbox_bridge_certificate_end_seconds` is when that ends, in Unix time.

Labels have a bounded number of values: `route`, `method`, `status_class` and `code` for requests, `queue` for the
queues of the journal, `producer_group` for the groups with most to do (`other` for the rest), `word` for answers and
failures.

"""


def read_rows(exposition: str) -> list[Row]:
    """Name, type and text of each family, but for times of creation. A counter has the name of its samples."""
    texts = dict(re.findall(r"^# HELP (\S+) (.*)$", exposition, re.MULTILINE))
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE)
    named = [pair for pair in kinds if pair[0].startswith("outbox_bridge_") and not pair[0].endswith("_created")]
    return sorted((code(name), kind, texts[name]) for name, kind in named)


def make_metrics(rows: Iterable[Row]) -> str:
    """The page."""
    return (
        MADE.replace("tests.references", "tests.references.metrics URL")
        + _INTRODUCTION
        + table(("metric", "type", "what it is"), rows)
    )


if __name__ == "__main__":
    with urllib.request.urlopen(f"{sys.argv[1]}/metrics", timeout=30) as answer:
        PAGE.write_text(make_metrics(read_rows(answer.read().decode())))
