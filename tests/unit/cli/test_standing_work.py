"""What `doctor` says of work that stands still."""

from typing import Any

import pytest

from api.web.health import BROKEN, OK, WARNING, Probes, judge_group, judge_stats

EARLY, LATE = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"
CALM = {"blocked": 0, "parked": 0, "settle_lag_seconds": 0.5, "projection_lag_seconds": 0.0}


def group(mode: str = "push", pending: int = 1, unasked: str | None = None, **endpoint: Any) -> dict[str, Any]:
    asked = {"url": "http://shop", "disabled_reason": None, "last_answered_at": None, "last_unanswered_at": None,
             "last_failure": None, **endpoint}  # fmt: skip
    return {
        "name": "shop",
        "check": {"mode": mode},
        "endpoints": [asked],
        "unasked": {"count": 1, "last_at": unasked},
        "fetched": {"answered": 1, "last_answered_at": EARLY},
        "counts": {"pending": pending},
    }


def test_nothing_stands_still() -> None:
    """One line, and it is well."""
    assert [diagnosis.verdict for diagnosis in judge_stats(CALM)] == [OK]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"blocked": 2}, "blocked"),
        ({"parked": 1}, "parked"),
        ({"settle_lag_seconds": 61.0}, "settlers"),
        ({"projection_lag_seconds": 61.0}, "projector"),
    ],
)
def test_what_stands_still_is_broken_and_has_a_remedy(members: dict[str, Any], what: str) -> None:
    """Of each alone."""
    (diagnosis,) = judge_stats({**CALM, **members})
    assert (diagnosis.verdict, diagnosis.what, bool(diagnosis.remedy)) == (BROKEN, what, True)


@pytest.mark.parametrize(
    ("members", "verdicts"),
    [
        (group(), []),
        (group(last_answered_at=LATE, last_unanswered_at=EARLY), []),
        (group(last_answered_at=EARLY, last_unanswered_at=LATE, last_failure="404"), [BROKEN]),
        (group(pending=0, last_unanswered_at=LATE, last_failure="404"), [WARNING]),
        (group(disabled_reason="410"), [BROKEN]),
        (group("pull", unasked=LATE), [BROKEN]),
        (group("pull", pending=0, unasked=LATE), []),
        (group("push", unasked=LATE), []),
    ],
)
def test_group_is_judged_by_its_last_check(members: dict[str, Any], verdicts: list[str]) -> None:
    """It is broken only while somebody waits for its answer."""
    assert [diagnosis.verdict for diagnosis in judge_group(members)] == verdicts


GOOD = {"endpoint": "http://shop", "verdict": "good", "found": "answers a signed call", "remedy": ""}
BAD = {"endpoint": "http://shop", "verdict": "bad", "found": "no answer: status 401", "remedy": "Answer 200."}


@pytest.mark.parametrize(
    ("probes", "verdicts"),
    [((), []), ([GOOD], [OK]), ([BAD], [BROKEN]), ([BAD, GOOD], [WARNING, OK]), (None, [BROKEN])],
)
def test_signed_call_tells_more_than_old_checks(probes: Probes, verdicts: list[str]) -> None:
    """One endpoint that answers is enough; what was unanswered before counts only where no call was made."""
    failed = group(last_unanswered_at=LATE, last_failure="timeout")
    assert [diagnosis.verdict for diagnosis in judge_group(failed, probes)] == verdicts
