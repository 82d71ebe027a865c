"""K: nobody is asked too early, too late or too often. The endpoints' own logs are the witness."""

from collections.abc import Iterator

from tests.support.history.evidence import CheckCall, GroupRules, OpRow
from tests.support.history.facts import Facts
from tests.support.history.joined import Joined
from tests.support.history.violation import Kind, Violation

Found = Iterator[Violation]

_DEFAULTS = GroupRules()


def find_early_checks(joined: Joined, facts: Facts) -> Found:
    """None before append time + max(timeout, immunity), nor within the interval after an answered one."""
    if not facts.checks or facts.contents is None:
        return
    rules, slack_ms = _rules(joined, facts), joined.rules.clock_slack_ms
    first_ms = facts.appended_ms() + max(rules.timeout_ms, facts.immunity_s * 1000)
    early = min(facts.checks, key=_time)
    if early.at_ms + slack_ms < first_ms:
        text = f"check {early.check_number} came at {early.at_ms}, the first was due at {first_ms}"
        yield Violation(Kind.EARLY_CHECK, facts.transaction_id, text)
    if facts.is_hastened:
        return
    answered: dict[int, int] = {}
    for call in facts.checks:
        if call.answer is not None:  # asked once more if the answer was lost: the first may have been counted
            answered[call.check_number] = min(call.at_ms, answered.get(call.check_number, call.at_ms))
    for call in facts.checks:
        before_ms = answered.get(call.check_number - 1)
        if before_ms is not None and call.at_ms + slack_ms < before_ms + rules.interval_ms:
            text = f"check {call.check_number} came at {call.at_ms}, the one before was answered at {before_ms}"
            yield Violation(Kind.EARLY_CHECK, facts.transaction_id, text)


def find_late_checks(joined: Joined, facts: Facts) -> Found:
    """None after a recorded resolution, beyond what was in flight."""
    resolved_ms = facts.resolved_ms()
    if not facts.checks or resolved_ms is None:
        return
    late = max(facts.checks, key=_time)
    if late.at_ms > resolved_ms + joined.rules.in_flight_ms + joined.rules.clock_slack_ms:
        text = f"check {late.check_number} came at {late.at_ms}, it was resolved at {resolved_ms}"
        yield Violation(Kind.LATE_CHECK, facts.transaction_id, text)


def find_too_many_checks(joined: Joined, facts: Facts) -> Found:
    """As many answered ones as are allowed in each life; a resume begins another. A number is one answered check."""
    if not facts.checks:
        return
    allowed = facts.max_checks if facts.max_checks is not None else _rules(joined, facts).max_checks
    last = max(facts.checks, key=_number)
    if last.check_number > allowed * (1 + facts.resumes):
        text = f"check {last.check_number} came at {last.at_ms}, {allowed} are allowed, it was resumed {facts.resumes}x"
        yield Violation(Kind.TOO_MANY_CHECKS, facts.transaction_id, text)


def find_miscounted_checks(joined: Joined, facts: Facts) -> Found:
    """Only an answer that really arrived uses one up."""
    if "checks" not in joined.has:
        return
    nonces = joined.told.nonces
    answered = {call.check_number for call in facts.checks if call.answer is not None or call.nonce in nonces}
    for number in sorted({call.check_number for call in facts.checks}):
        if number > 1 and number - 1 not in answered:
            text = f"check {number} came, and nobody answered check {number - 1}"
            yield Violation(Kind.MISCOUNTED_CHECK, facts.transaction_id, text)
    counted = 0 if facts.op is None else facts.op.check_times
    last = max((call.check_number for call in facts.checks), default=0)
    if "op" in joined.has and counted < last - 1:
        text = f"check {last} came, and {counted} answered checks are counted"
        yield Violation(Kind.MISCOUNTED_CHECK, facts.transaction_id, text)
    if counted > max(answered, default=0):
        text = f"{counted} answered checks are counted, the endpoints answered {max(answered, default=0)}"
        yield Violation(Kind.MISCOUNTED_CHECK, facts.transaction_id, text)


def find_groundless_parks(joined: Joined, facts: Facts) -> Found:
    """Parked for a reason that was not there yet, or for none."""
    for row in facts.parks:
        if row.why is not None and (wrong := _find_wrong_reason(joined, facts, row)):
            text = f"op offset {row.offset} parks it for {row.why}, {wrong}"
            yield Violation(Kind.BAD_PARK, facts.transaction_id, text)


def _find_wrong_reason(joined: Joined, facts: Facts, row: OpRow) -> str | None:
    rules = _rules(joined, facts)
    if row.why == "MAX_CHECKS":
        allowed = facts.max_checks if facts.max_checks is not None else rules.max_checks
        counted = row.check_times - row.base
        return None if counted >= allowed else f"after {counted} of {allowed} answered checks"
    if row.why in {"MAX_LIFE", "NO_ENDPOINT"}:
        lived_ms = row.stored_ms - facts.appended_ms()
        is_over = lived_ms + joined.rules.clock_slack_ms >= rules.max_life_ms
        return None if is_over else f"after {lived_ms} ms of {rules.max_life_ms}"
    return "which is no reason"


def find_strange_checks(_: Joined, facts: Facts) -> Found:
    """Nobody is asked about what nobody prepared, nor another group."""
    if not facts.checks:
        return
    if facts.contents is None:
        text = f"a check came at {facts.checks[0].at_ms} for what nobody prepared"
        yield Violation(Kind.STRANGE_CHECK, facts.transaction_id, text)
    for call in facts.checks:
        if call.group and facts.group is not None and call.group != facts.group:
            text = f"group {call.group} was asked at {call.at_ms}, {facts.group} prepared it"
            yield Violation(Kind.STRANGE_CHECK, facts.transaction_id, text)


def _rules(joined: Joined, facts: Facts) -> GroupRules:
    return joined.rules.groups.get(facts.group or "", _DEFAULTS)


def _time(call: CheckCall) -> int:
    return call.at_ms


def _number(call: CheckCall) -> int:
    return call.check_number
