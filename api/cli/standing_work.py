"""What `doctor` learns of a running bridge over HTTP: work that stands still, and groups that do not answer. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

OK, WARNING, BROKEN, SKIPPED = "ok", "warning", "broken", "skipped"
MAX_LAG_S = 60.0


class Diagnosis(NamedTuple):
    """What one examination found. `verdict`: ok, warning, broken, or skipped: it cannot be seen from here."""

    verdict: str
    what: str
    found: str
    remedy: str = ""


def judge_stats(stats: Mapping[str, Any]) -> list[Diagnosis]:
    """Commits that cannot be published, what waits for a person, and lag."""
    found = []
    if blocked := stats["blocked"]:
        remedy = "`outbox-bridge tx list --blocked` names the reason of each; they go on once it is gone."
        found.append(Diagnosis(BROKEN, "blocked", f"{blocked} committed and not published", remedy))
    if parked := stats["parked"]:
        remedy = "`outbox-bridge parked list` shows them; `outbox-bridge parked redrive` ends or resumes them."
        found.append(Diagnosis(BROKEN, "parked", f"{parked} wait for a decision by hand", remedy))
    for name, what in {"settle": "settlers", "projection": "projector"}.items():
        if (lag := stats[f"{name}_lag_seconds"]) > MAX_LAG_S:
            text = f"{lag:.0f} s behind the journal"
            found.append(
                Diagnosis(BROKEN, what, text, f"Start or add processes with this role; see {what} in the log.")
            )
    return found or [Diagnosis(OK, "work", "nothing is blocked or parked, and nothing lags")]


Probes = Sequence[Mapping[str, Any]] | None
"""What the endpoints of a group did with a signed call; None: nobody may make it."""


def judge_group(group: Mapping[str, Any], probes: Probes = None) -> Iterator[Diagnosis]:
    """Whose endpoints do not answer a signed call; by its last checks, if there was none."""
    pending, what = group["counts"]["pending"], f"group {group['name']}"
    waiting = f"; {pending} wait for their end" if pending else ""
    remedy = f"Start it, or correct its URL; then `outbox-bridge group test {group['name']}`."
    verdict = BROKEN if pending else WARNING
    for endpoint in group["endpoints"]:
        url = endpoint["url"]
        if why := endpoint["disabled_reason"]:
            yield Diagnosis(verdict, what, f"{url} is asked no more: {why}{waiting}", remedy)
        elif probes is None and _is_later(endpoint["last_unanswered_at"], endpoint["last_answered_at"]):
            yield Diagnosis(verdict, what, f"{url} did not answer: {endpoint['last_failure']}{waiting}", remedy)
    if group["check"]["mode"] == "pull":
        if pending and _is_later(group["unasked"]["last_at"], group["fetched"]["last_answered_at"]):
            yield Diagnosis(BROKEN, what, f"nobody fetches its checks{waiting}", "Start its workers; see their logs.")
    elif not group["endpoints"]:
        remedy = f"outbox-bridge group set {group['name']} --endpoint URL"
        yield Diagnosis(verdict, what, f"no endpoint: nobody can be asked{waiting}", remedy)
    else:
        yield from _judge_probes(what, probes or (), waiting)


def _judge_probes(what: str, probes: Sequence[Mapping[str, Any]], waiting: str) -> Iterator[Diagnosis]:
    """Broken where no endpoint answers: one is enough for a check."""
    verdict = WARNING if any(probe["verdict"] == "good" for probe in probes) else BROKEN
    for probe in probes:
        if probe["verdict"] == "good":
            yield Diagnosis(OK, what, f"{probe['endpoint']} {probe['found']}")
        else:
            yield Diagnosis(verdict, what, f"{probe['endpoint']}: {probe['found']}{waiting}", probe["remedy"])


def judge_groups(groups: Iterable[tuple[Mapping[str, Any], Probes]]) -> list[Diagnosis]:
    """Of all groups, each with what its endpoints did."""
    return [diagnosis for group, probes in groups for diagnosis in judge_group(group, probes)]


def _is_later(failed: str | None, answered: str | None) -> bool:
    """Times as the bridge writes them can be compared as they stand."""
    return failed is not None and (answered is None or failed > answered)
