"""What producers remark with ends and answers, from real records to the report and to the run after it."""

import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

from pyspark.sql import SparkSession

from bridge.core.message import Message
from spark.judge.findings import NEW, STILL, decode_findings
from spark.judge.rules import FindingKind
from spark.options import Options, parse_groups
from spark.read.envelope import COMMIT, ROLLBACK, UNKNOWN
from spark.reconcile import reconcile
from spark.selftest.run import Injector, SeededTopics, groups_document
from spark.selftest.seeded import (
    BLOCKED,
    COMMITTED,
    HALF,
    HOUR_MS,
    LIFE_MS,
    ORDERS,
    PARK,
    PARKED,
    ROLLED_BACK,
    SHOW,
    Scenario,
    ScenarioStep,
    step,
)

HOSTILE = "<script>alert(1)</script>\u202e\u2028\n{{ 7 * 7 }}" + "é" * 400
_ORDINARY = "of nothing that was found"


def answer(number: int, remark: str | None) -> ScenarioStep:
    """To a check, half a minute after the one before."""
    return step("end", code=UNKNOWN, src="C", num=number, after_ms=30_000 * number, remark=remark)


def end(code: int, remark: str | None) -> ScenarioStep:
    return step("end", code=code, remark=remark)


def tales() -> Iterator[tuple[str | None, Scenario]]:
    """Transactions, with the remark that must be reported."""

    def wrong(
        remark: str | None, kind: str, *steps: ScenarioStep, age_ms: int = 2 * HOUR_MS
    ) -> tuple[str | None, Scenario]:
        messages = (Message(ORDERS, f"{remark}-{kind}-{age_ms}".encode(), b"v"),)
        return remark, Scenario(kind, steps, [FindingKind(kind)] if kind else [], messages, age_ms)

    yield wrong(HOSTILE, "PHANTOM", HALF, end(ROLLBACK, HOSTILE), SHOW, ROLLED_BACK)
    yield wrong("paid", "PHANTOM", HALF, end(COMMIT, "paid"), step("show", index=0, is_told=False), BLOCKED)
    yield wrong("away", "PHANTOM", HALF, answer(1, "busy"), answer(2, "away"), PARK, SHOW, PARKED)
    yield wrong("lost", "STALE", HALF, answer(1, "lost"), answer(2, None), age_ms=LIFE_MS + 2 * HOUR_MS)
    yield wrong("once", "UNSETTLED", HALF, end(COMMIT, "once"))
    yield wrong("early", "ORPHAN", end(COMMIT, "early"))
    yield wrong(None, "UNSETTLED", HALF, end(COMMIT, None))
    yield wrong(None, "", HALF, end(COMMIT, _ORDINARY), SHOW, COMMITTED)


def tell_nobody(_: str) -> None:
    """Nobody waits."""


def test_report_tells_what_producers_remarked_last(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Of whatever was found, as text; the next run has read none of it, and tells it still."""
    stage = SeededTopics(f"remarks-{time.time_ns()}.")
    access = {"bootstrap.servers": kafka}
    injector = Injector(access, stage, time.time_ns() // 1_000_000)
    injector.create_topics()
    wanted = list(tales())
    truth = injector.write([tale for _, tale in wanted])
    expected = dict(zip(truth, [remark for remark, tale in wanted if tale.kinds], strict=True))
    assert len(expected) == 7
    options = Options(
        tmp_path, stage.internal, access, topics=[stage.real(ORDERS)], groups=parse_groups(groups_document())
    )
    for state in (NEW, STILL):
        folder = reconcile(spark, replace(options, since_last=state == STILL), tell_nobody).folder
        text, page = (folder / "findings.jsonl").read_text(), (folder / "report.html").read_text()
        found = decode_findings(text)
        assert {(one.transaction_id, one.kind): one.remark for one in found} == expected
        assert {one.state for one in found} == {state}
        assert text.count('"remark":') == 6
        told = {row.transaction_id: row.remark for row in spark.read.parquet(str(folder / "findings")).collect()}
        assert told == {one.transaction_id: one.remark for one in found}
        assert "<script" not in page
        assert not {"\u202e", "\u2028"} & set(page)
        assert all(f"remark: {remark}" in unescape(page).replace("</span> <bdi>", " ") for remark in ("away", "lost"))
        assert "<script>alert(1)</script>\\u202e\\u2028\\n{{ 7 * 7 }}é" in unescape(page)
        assert not [part for part in (_ORDINARY, "busy") if part in text + page]
