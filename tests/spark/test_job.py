"""The whole job on a real Kafka: what is planted is found and nothing else, in one window and in several."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import jsonschema_rs
import pytest
from pyspark.sql import SparkSession

from spark.errors import BadUsage, ReconcileError
from spark.judge.findings import CLEARED, decode_findings
from spark.judge.rules import FindingKind
from spark.options import Options, parse_groups
from spark.read.envelope import Evidence, OffsetRange
from spark.read.table_list import JdbcDatabase, parse_tables
from spark.read.window import Window, decode_window, encode_window
from spark.reconcile import RunOutcome, main, reconcile
from spark.selftest.run import Checked, SeededTopics, check_job, groups_document, make_tales
from spark.selftest.seeded import BANK, ORDERS, SHOP, ScenarioStep

ROUNDS = 2
UNKNOWN_ROW = "row in bank.outbox_transaction, but its transaction is unknown"


def tell_nobody(_: str) -> None:
    """Nobody waits."""


@pytest.fixture(scope="module")
def checked(spark: SparkSession, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """One self-test: 300 ordinary transactions, and twice everything else."""
    folder = tmp_path_factory.mktemp("runs")
    return check_job(spark, {"bootstrap.servers": kafka}, make_tales(300, ROUNDS), folder, tell_nobody)


def read_again(folder: Path) -> list[JdbcDatabase]:
    """The producers' tables that the self-test has filled."""
    records = [{"groups": [BANK]}]
    return parse_tables(
        {"databases": [{"name": "bank", "url": f"jdbc:sqlite:{folder}/records.db", "records": records}]}
    )


def run_again(spark: SparkSession, checked: Checked, out: Path, **members: object) -> RunOutcome:
    """Another run on what the self-test has landed."""
    topics = decode_window((checked.outcome.folder / "window.json").read_text())
    internal = SeededTopics(topics.half.removesuffix("RMQ_SYS_TRANS_HALF_TOPIC")).internal
    landed = checked.outcome.folder
    options = Options(out, internal, {}, landed=landed, groups=parse_groups(groups_document()))
    options = replace(options, databases=read_again(landed.parent))
    return reconcile(spark, replace(options, **members), tell_nobody)  # type: ignore[arg-type]


def standing(folder: Path) -> set[tuple[str, str]]:
    """Findings that are not cleared."""
    return {one.name for one in decode_findings((folder / "findings.jsonl").read_text()) if one.state != CLEARED}


def test_everything_planted_is_found_and_nothing_else(checked: Checked) -> None:
    """Every kind, with every look-alike beside it."""
    assert (sorted(checked.unseen), sorted(checked.invented)) == ([], [])
    assert checked.planted >= 25 * ROUNDS
    assert checked.outcome.exit_code == 1


def _is_counted(step: ScenarioStep) -> bool:
    return step.name == "half" and not step.options.get("is_void")


def test_report_is_complete(checked: Checked) -> None:
    """Summary by its schema, books that balance, a manifest of every file, findings with evidence."""
    folder = checked.outcome.folder
    summary = json.loads((folder / "summary.json").read_text())
    schema = json.loads((files("spark") / "templates" / "summary.schema.json").read_text())
    jsonschema_rs.validate(schema, summary)
    total = summary["books"]["total"]
    assert total["is_balanced"]
    has_half = [any(_is_counted(step) for step in tale.steps) for tale in make_tales(300, ROUNDS)]
    assert total["prepared"] == sum(has_half)
    assert summary["findings"]["new"] == checked.planted
    orders = next(row for row in summary["books"]["topics"] if row["topic"].endswith(ORDERS) and row["group"] == SHOP)
    assert orders["is_balanced"]
    assert not orders["is_equal"]
    asked = [tale for tale, is_there in zip(make_tales(300, ROUNDS), has_half, strict=True) if is_there]
    assert orders["prepared"] == sum(
        message.topic == ORDERS for tale in asked if tale.group == SHOP for message in tale.messages
    )
    assert total["prepared"] == sum(
        total[name] for name in ("committed", "blocked", "abandoned", "rolled_back", "parked", "open")
    )
    assert all(
        row["is_right"] and row["rows"] + row["holes"] == row["end"] - row["start"] for row in summary["partitions"]
    )
    assert sum(row["foreign"] for row in summary["partitions"]) == 100
    manifest = json.loads((folder / "manifest.json").read_text())["sha256"]
    assert manifest == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest}
    found = decode_findings((folder / "findings.jsonl").read_text())
    assert all(one.legs for one in found if one.detail != UNKNOWN_ROW)
    kinds = summary["findings"]["by_kind"]
    metrics = (folder / "metrics.prom").read_text()
    assert all(f'outbox_bridge_report_findings{{kind="{kind}"}} {count}\n' in metrics for kind, count in kinds.items())
    repairs = [json.loads(line) for line in (folder / "repair.jsonl").read_text().splitlines()]
    assert sorted(repair["kind"] for repair in repairs) == sorted(["STALE", "UNSETTLED"] * ROUNDS)


def test_tables_hold_a_verdict_for_every_transaction(spark: SparkSession, checked: Checked) -> None:
    """Parquet for whoever wants to ask more."""
    folder = checked.outcome.folder
    rows = spark.read.parquet(str(folder / "transactions")).where("verdict <> 'OK'").select("tx", "verdict").collect()
    found = decode_findings((folder / "findings.jsonl").read_text())
    of_transactions = [one for one in found if one.detail != UNKNOWN_ROW and one.kind != FindingKind.UNREADABLE]
    assert {row.tx for row in rows} == {one.transaction_id for one in of_transactions}
    assert spark.read.parquet(str(folder / "findings")).count() == checked.planted
    assert spark.read.parquet(str(folder / "windows")).count() == 1


def test_two_runs_are_byte_equal(spark: SparkSession, checked: Checked, tmp_path: Path) -> None:
    """Of the same window; the plots too."""
    again = run_again(spark, checked, tmp_path / "again")
    names = [*json.loads((again.folder / "manifest.json").read_text())["sha256"], "manifest.json"]
    assert len(names) == 7
    for name in names:
        assert (again.folder / name).read_bytes() == (checked.outcome.folder / name).read_bytes(), name


def cut(window: Window, starts: dict[str, float], ends: dict[str, float]) -> Window:
    """Of every partition the part between two fractions; topics of no name are "real"."""

    def share(topic: str, extent: OffsetRange) -> OffsetRange:
        name = {window.half: "half", window.op: "op", window.parked: "parked"}.get(topic, "real")
        size = extent.end - extent.start
        low, high = (extent.start + round(size * of[name]) for of in (starts, ends))
        return replace(extent, start=low, end=high, seen=high)

    return replace(window, extents={place: share(place.topic, extent) for place, extent in window.extents.items()})


def windows(whole: Window) -> Iterator[Window]:
    """Five: part of the journal; most of everything; the rest of the journal; what followed from it; nothing more.

    What was closed by the second is repeated in the third, and told again in the fourth.
    """
    marks = [
        {"half": half, **dict.fromkeys(("op", "parked", "real"), others)}
        for half, others in ((0.0, 0.0), (0.4, 0.0), (0.9, 0.9), (1.0, 0.9), (1.0, 1.0), (1.0, 1.0))
    ]
    for starts, ends in pairwise(marks):
        yield cut(whole, starts, ends)


def test_windows_together_find_what_one_finds(spark: SparkSession, checked: Checked, tmp_path: Path) -> None:
    """A run since the last one knows what was open, also after a kill; what was only late is CLEARED.

    What was closed is looked up when it matters again: a record twice, long after, or published out of order, a half
    message repeated; each event once. What stands goes on standing when nothing comes any more.
    """
    whole = decode_window((checked.outcome.folder / "window.json").read_text())
    out = tmp_path / "runs"
    states = []
    for number, window in enumerate(windows(whole), start=1):
        path = tmp_path / f"{number}.json"
        path.write_text(encode_window(window))
        killed = out / f"{number:06d}" / "events"
        killed.mkdir(parents=True)
        (killed / "half-written").write_bytes(b"of a run that was killed")
        last = run_again(spark, checked, out, since_last=True, window=path)
        books = json.loads((last.folder / "summary.json").read_text())["books"]
        assert books["total"]["is_balanced"]
        assert all(book["is_balanced"] for book in books["topics"])
        assert number == 1 or books["carried_over"]["is_right"]
        assert spark.read.parquet(str(last.folder / "transactions")).where("halves > 2").count() == 0
        found = decode_findings((last.folder / "findings.jsonl").read_text())
        states.append({one.state for one in found if one.kind != FindingKind.UNREADABLE})  # these were written last
    assert standing(last.folder) == standing(checked.outcome.folder)
    assert states[-2:] == [{"STILL", "CLEARED"}, {"STILL"}]
    carried = spark.read.parquet(str(last.folder / "carry")).where(f"leg = {Evidence.HALF}").count()
    assert carried < json.loads((last.folder / "summary.json").read_text())["books"]["total"]["prepared"] + 200


class Page(HTMLParser):
    """What matters of the page: tags, ids, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]


def test_page_has_no_script_and_a_table_for_each_plot(checked: Checked) -> None:
    """One file that can be mailed; ids of several plots do not meet."""
    text = (checked.outcome.folder / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert page.tags.count("svg") == 3
    assert page.tags.count("table") > page.tags.count("svg")
    assert len(page.ids) == len(set(page.ids))
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text) == []
    assert "over the threshold" in text


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        pytest.param(["--topics", "no-such-topic"], 2, "topic no-such-topic does not exist", id="topic"),
        pytest.param(["--prefix", "nobody."], 2, "topic nobody.", id="prefix"),
        pytest.param(["--window", "missing.json"], 2, "cannot read missing.json", id="window"),
        pytest.param(["--kafka", "127.0.0.1:9"], 3, "Kafka cannot be read now", id="broker"),
    ],
)
def test_what_cannot_be_is_one_line_and_an_exit_code(
    spark: SparkSession, kafka: str, tmp_path: Path, arguments: list[str], code: int, reason: str
) -> None:
    """Soon, and without a trace of Python or Java."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    options = Options(
        tmp_path / "runs",
        SeededTopics(given.get("--prefix", "")).internal,
        {"bootstrap.servers": given.get("--kafka", kafka)},
        topics=[given["--topics"]] if "--topics" in given else [],
        window=Path(given["--window"]) if "--window" in given else None,
    )
    with pytest.raises(ReconcileError) as raised:
        reconcile(spark, options, tell_nobody)
    assert raised.value.exit_code == code
    assert raised.value.reason.startswith(reason) or "does not exist" in raised.value.reason


def test_arguments_that_cannot_be_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before Spark is started."""
    assert main(["--out", str(tmp_path)]) == BadUsage.exit_code
    assert capsys.readouterr().err.splitlines()[0] == "error: no Kafka named"
