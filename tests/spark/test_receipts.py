"""Records without the header, found by the places that receipts name."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark.errors import Indeterminate
from spark.judge.findings import decode_findings
from spark.judge.judging import link_by_receipts
from spark.judge.rules import FindingKind, judge
from spark.options import Options, parse_groups
from spark.read.envelope import Event, Evidence, PreparedMessage, ReceiptRow
from spark.read.events import EVENTS
from spark.read.window import Window
from spark.reconcile import reconcile
from spark.selftest.run import Injector, SeededTopics, compare_truth, groups_document, make_tales, write_records
from spark.selftest.seeded import Scenario, ScenarioStep
from tests.support.envelope_rows import (
    END_MS,
    HALF,
    NOW_MS,
    OP,
    PARKED,
    SCOPE,
    TX,
    commit,
    half,
    op,
    record,
    with_extent,
)
from tests.support.run_views import make_frame, show_views

# told of by nobody, so nobody's
UNSEEN = {"duplicate", "duplicate long after", "phantom of a rollback", "phantom of a parked one",
          "phantom of an undecided one", "phantom of a blocked one",
          "phantom of an abandoned one", "orphaned record"}  # fmt: skip
# what its receipt does not find is nowhere
TAKEN_FOR = {"wrong receipt": [FindingKind.MISSING]}
BEYOND = 2**40  # an offset that is no record's, of whatever transaction
FOUND = record()
OTHER = make_transaction_id(0, make_uuid7_bits(END_MS, 2))
NOBODYS = FOUND._replace(tx="", leg=Evidence.FOREIGN)
ANOTHERS = NOBODYS._replace(off=101)


def tell_nobody(_: str) -> None:
    """Nobody waits."""


def tales() -> Iterator[Scenario]:
    """One round of everything, with what can be seen of it."""
    for tale in make_tales(30, 1):
        kinds = () if tale.name in UNSEEN else TAKEN_FOR.get(tale.name, tale.kinds)
        yield replace(tale, kinds=kinds, steps=[_misled(step) for step in tale.steps])


def _misled(step: ScenarioStep) -> ScenarioStep:
    """A receipt that should name nothing names nothing, where it might name what nobody else has told of."""
    given = dict(step.options)
    if "receipts" in given:
        given["receipts"] = [(topic, part, BEYOND) for topic, part, _ in given["receipts"]]
    if "lost" in given:
        given["lost"] = (*given["lost"][:2], BEYOND)
    return step._replace(options=given)


def test_everything_that_receipts_can_show_is_found(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """And nothing else: what was published rightly is nobody's duplicate, and nothing is missing."""
    stage = SeededTopics(f"receipts-{time.time_ns()}.", has_id_header=False)
    options = {"bootstrap.servers": kafka}
    injector = Injector(options, stage, time.time_ns() // 1_000_000)
    injector.create_topics()
    truth = injector.plant(tales())
    internal = {stage.internal.half, stage.internal.op, stage.internal.parked}
    real = [name for name in stage.topics if name not in internal]
    asked = Options(
        tmp_path, stage.internal, options, topics=real, groups=parse_groups(groups_document()), by_receipts=True,
        databases=write_records(tmp_path / "records.db", injector.rows),
    )  # fmt: skip
    outcome = reconcile(spark, asked, tell_nobody)
    unseen, invented = compare_truth(truth, (outcome.folder / "findings.jsonl").read_text())
    assert (sorted(unseen), sorted(invented)) == ([], [])
    assert {FindingKind.CORRUPT, FindingKind.WRONG_PLACE, FindingKind.OUT_OF_ORDER, FindingKind.UNPROVABLE} <= {
        FindingKind(one.kind) for one in decode_findings((outcome.folder / "findings.jsonl").read_text())
    }
    assert outcome.sentence.endswith("so duplicates and phantoms cannot be seen.")
    partitions = json.loads((outcome.folder / "summary.json").read_text())["partitions"]
    foreign = {row["topic"]: 0 for row in partitions} | {stage.real("orders"): 0}
    for row in partitions:
        foreign[row["topic"]] += row["foreign"]
    assert foreign[stage.real("orders")] >= 100  # the noise, and what nobody told of
    assert sum(foreign.values()) < sum(row["rows"] for row in partitions) / 2


def link(
    spark: SparkSession, folder: Path, events: Sequence[Event], *before: Path, start: int = 0, anew_ms: int = 0
) -> list[Event]:
    """The visible records afterwards, of a window that begins in real topics at `start`."""
    show_views(spark, events)
    scope = with_extent(SCOPE, "orders", start=start, anew_ms=anew_ms)
    link_by_receipts(spark, Window(HALF, OP, PARKED, scope.now_ms, scope.extents), folder, before)
    rows = spark.table("events").where(f"leg = {Evidence.VISIBLE}").collect()
    return [Event(*row) for row in rows]


def test_records_of_receipts_are_the_transactions_own(spark: SparkSession, tmp_path: Path) -> None:
    """As if they had the header; another record stays another producer's; a place that names nobody proves nothing."""
    events = [half(), commit(), op("COMMITTED"), NOBODYS, ANOTHERS]
    assert link(spark, tmp_path / "1", events) == [FOUND]
    told = {row.off: row.leg for row in spark.table("new_events").where("topic = 'orders'").collect()}
    assert told == {FOUND.off: Evidence.VISIBLE, ANOTHERS.off: Evidence.FOREIGN}
    nowhere = op("COMMITTED", receipts=[ReceiptRow("orders", 0, None)])
    assert link(spark, tmp_path / "2", [half(), commit(), nowhere, NOBODYS]) == []
    (found,) = judge(TX, [half(), commit(), nowhere], replace(SCOPE, by_receipts=True))
    assert found.kind is FindingKind.UNPROVABLE
    (found,) = judge(TX, [half(), commit(), op("COMMITTED")], replace(SCOPE, by_receipts=True))
    assert found.kind is FindingKind.MISSING


def test_record_and_receipt_may_lie_in_two_windows(spark: SparkSession, tmp_path: Path) -> None:
    """They were written at once, but ends are noted one after the other; and nothing carried is counted twice."""
    earlier = tmp_path / "earlier"
    make_frame(spark, [half(), commit(), NOBODYS, ANOTHERS]).write.parquet(str(earlier / EVENTS))
    now = [half(), commit(), op("COMMITTED")]
    assert link(spark, tmp_path / "1", now, earlier, start=500) == [FOUND]
    assert link(spark, tmp_path / "2", [*now, FOUND], earlier, start=500) == [FOUND]


def test_place_in_a_topic_that_was_deleted_names_no_record(spark: SparkSession, tmp_path: Path) -> None:
    """In the one that was made anew somebody else's lies there, which is not what was prepared."""
    events = [half(), commit(), op("COMMITTED"), NOBODYS]
    assert link(spark, tmp_path / "1", events, anew_ms=END_MS) == [FOUND]
    assert link(spark, tmp_path / "2", events, anew_ms=NOW_MS) == []
    (found,) = judge(TX, events[:3], with_extent(SCOPE, "orders", anew_ms=NOW_MS))
    assert "deleted, and made anew" in found.detail


def test_record_belongs_to_one_transaction(spark: SparkSession, tmp_path: Path) -> None:
    """Of two that name it, the first that did: the other's message is nowhere, however equal they are."""
    late = [event._replace(tx=OTHER) for event in (half(), commit(), op("COMMITTED", off=31, ms=END_MS + 60_000))]
    first = [half(), commit(), op("COMMITTED"), NOBODYS]
    assert link(spark, tmp_path / "1", [*late, *first]) == [FOUND]
    make_frame(spark, first).write.parquet(str(tmp_path / "1" / EVENTS))
    assert link(spark, tmp_path / "2", late, tmp_path / "1", start=500) == []
    assert link(spark, tmp_path / "3", first[:3], tmp_path / "1", start=500) == [FOUND]


def test_record_is_not_taken_from_who_has_prepared_it(spark: SparkSession, tmp_path: Path) -> None:
    """A false receipt that was told first: what lies there is not what the liar prepared, so it is not his."""
    lie = [
        half([PreparedMessage("orders", None, 999, None)], off=5),
        commit(6),
        op("COMMITTED", off=7, half=5, cause=6, ms=1),
    ]
    lie = [event._replace(tx=OTHER) for event in lie]
    assert link(spark, tmp_path / "1", [*lie, half(), commit(), op("COMMITTED"), NOBODYS]) == [FOUND]


@pytest.mark.parametrize("is_earlier", [False, True])
def test_record_that_was_read_without_its_hash_is_not_called_missing(
    spark: SparkSession, tmp_path: Path, *, is_earlier: bool
) -> None:
    """As `report land` did without `--by-receipts`: every commit would seem lost. One that nobody names is nobody's."""
    unhashed = NOBODYS._replace(content=None, body=None, place=None, topic_id=None)
    assert link(spark, tmp_path / "1", [half(), commit(), unhashed]) == []
    told = [half(), commit(), op("COMMITTED")]
    make_frame(spark, [unhashed]).write.parquet(str(tmp_path / "0" / EVENTS))
    before = [tmp_path / "0"] if is_earlier else []
    with pytest.raises(Indeterminate, match="orders-0@100 was read without --by-receipts"):
        link(spark, tmp_path / "2", told if is_earlier else [*told, unhashed], *before, start=101 if is_earlier else 0)
