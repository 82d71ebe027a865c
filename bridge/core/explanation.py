"""Why a transaction is as it is, and what happens next and when: in words for operators. Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from bridge.core.check_rules import CheckMode, GroupSettings, WhenExhausted
from bridge.core.transaction import (
    BODY_EXPIRED,
    MAX_CHECKS,
    MAX_LIFE,
    NO_ENDPOINT,
    ORDER,
    SPLIT,
    UNTRIED,
    TransactionState,
    TransactionView,
    show_second,
)

_LATE_MS = 5_000  # a round takes a while, so what is due is not late at once


class NextStep(StrEnum):
    """What the bridge does next by itself."""

    CHECK = "check"
    RETRY = "retry"
    PARK = "park"
    NOTHING = "nothing"


class Unanswered(Struct, frozen=True):
    """Rounds in which nobody answered for a transaction, for one `failure`."""

    first_ms: int
    last_ms: int
    count: int
    failure: str
    endpoint: str | None


class Circumstances(NamedTuple):
    """What an explanation takes into account besides the transaction. `now_ms`: Kafka's time. `halt`: why its queue
    halts. `unanswered`: the last one counts. `is_body_lost`: no log has its messages any more."""

    now_ms: int
    settings: GroupSettings = GroupSettings()
    unanswered: Sequence[Unanswered] = ()
    halt: str | None = None
    is_body_lost: bool = False


class Explanation(NamedTuple):
    """`at_ms`: when the next step is due; None if nothing is, or nobody knows. `remark`: the producer's last one."""

    text: str
    next: NextStep = NextStep.NOTHING
    at_ms: int | None = None
    remark: str | None = None


_BY = {"producer": "by its producer", "check": "by the answer to a check", "operator": "by an operator"}

_BLOCKED = {
    SPLIT: "its batch failed, and it is tried apart from the others",
    UNTRIED: "its batch failed, and others are tried before it",
    ORDER: "an earlier commit with the same ordering key is blocked; it follows that one",
    BODY_EXPIRED: "no log has its messages any more",
    "UNKNOWN_TOPIC": "a topic, or the partition asked for, does not exist",
    "NOT_AUTHORISED": "the bridge may not write to a topic",
    "LEADERLESS": "a partition has no leader",
    "MESSAGE_TOO_LARGE": "a message is larger than its topic takes",
    "INVALID_TIMESTAMP": "a topic does not take the timestamp of a message",
    "KEY_REQUIRED": "a topic is compacted and a message has no key",
    "STORE_BUSY": "Kafka is busy, or has too few replicas",
    "NO_ANSWER": "brokers were too slow to take it in time",
}

_PARKED = {
    MAX_CHECKS: "every check it was allowed was answered UNKNOWN",
    MAX_LIFE: "its longest life was over and it was still undecided",
    NO_ENDPOINT: "there was nobody to ask",
}

_SILENT = {
    "no-endpoint": "its producer group has no live endpoint",
    "not-claimed": "nobody of its producer group fetched the check",
    "not-answered": "its producer group fetched the check and did not answer it",
    "no-secret": "its producer group has no signing secret",
    "no-body": "no log has its messages any more",
    "forbidden": "the address of its endpoint is not allowed",
    "dns": "the name of its endpoint cannot be resolved",
    "refused": "its endpoint took no connection",
    "no-socket": "the bridge had no file descriptor, port or memory left for a connection to its endpoint",
    "tls": "its endpoint's TLS failed",
    "timeout": "its endpoint did not answer in time",
    "closed": "its endpoint closed the connection before it answered",
    "malformed": "its endpoint did not answer in HTTP",
    "too-large": "its endpoint's answer was too large",
    "compressed": "its endpoint's answer was compressed",
    "redirect": "its endpoint answered with a redirect",
    "rate-limited": "its endpoint answered 429",
    "gone": "its endpoint answered 410, gone",
    "status": "its endpoint answered with another status than 200",
    "bad-answer": "its endpoint's answer had another shape than agreed",
    "left-out": "its endpoint's answer left this transaction out",
}


def explain(view: TransactionView, around: Circumstances) -> Explanation:
    """One sentence for every transaction that there can be."""
    if view.is_unproven:
        return Explanation(
            f"An operator gave up the log that held it at {_say(view.given_up_ms)}, when it was {_name_state(view)}: "
            "no log says how it ends, and the bridge does nothing about it any more."
        )
    if view.state is TransactionState.ROLLED_BACK:
        return Explanation(f"Rolled back {_say_end(view)}: its messages are never published.")
    if view.state is TransactionState.COMMITTED:
        return _explain_commit(view, around)
    if around.halt is not None:
        return Explanation(
            f"{'Parked' if view.state is TransactionState.PARKED else 'Pending'}: queue {view.queue_id} halts "
            f"({around.halt}), so nothing is decided about it, and nobody is asked, until an operator has acted."
        )
    undecided = _explain_parked(view) if view.state is TransactionState.PARKED else _explain_pending(view, around)
    return _say_loss(undecided) if around.is_body_lost else undecided


def _explain_parked(view: TransactionView) -> Explanation:
    reason = _PARKED.get(view.reason or "", view.reason or "no reason is recorded")
    return Explanation(
        f"Parked: {reason}; nobody is asked any more, and it ends when its producer or an operator ends it, or "
        "begins anew when an operator resumes it."
    )


def _say_loss(undecided: Explanation) -> Explanation:
    return undecided._replace(
        text=f"{undecided.text[:-1]}; but no log has its messages any more: a commit is refused, and what its producer "
        "has committed must be prepared anew."
    )


def _explain_commit(view: TransactionView, around: Circumstances) -> Explanation:
    reason = _BLOCKED.get(view.reason or "", view.reason or "no reason is recorded")
    if view.abandoned:
        return Explanation(
            f"Committed {_say_end(view)} and given up by an operator while it was blocked ({reason}): "
            "its messages are never published."
        )
    if not view.blocked:
        count = len(view.receipts)
        what = "its messages are" if count == 0 else "its message is" if count == 1 else f"its {count} messages are"
        return Explanation(f"Committed {_say_end(view)}: {what} published, and nothing is left to do.")
    if around.halt is not None:
        return Explanation(
            f"Committed {_say_end(view)}, not published yet: queue {view.queue_id} halts ({around.halt}), "
            "so nothing is tried until an operator has acted."
        )
    return Explanation(
        f"Committed {_say_end(view)}, not published yet: {reason}; the bridge tries again by itself, "
        "after a minute at the latest, until it succeeds or an operator abandons it.",
        NextStep.RETRY,
    )


def _explain_pending(view: TransactionView, around: Circumstances) -> Explanation:
    times, due_ms = around.settings.times, view.next_due_ms
    most = times.max_checks if view.max_checks is None else view.max_checks
    life_ms = times.max_lifetime_ms if view.max_life_s is None else view.max_life_s * 1000
    life_end_ms = (view.appended_ms if view.since_ms is None else view.since_ms) + life_ms
    answered = view.check_times - view.base
    given_up = "rolled back" if around.settings.when_exhausted is WhenExhausted.ROLLBACK else "parked"
    if around.settings.pauses_checks:
        return Explanation(
            "Pending: an operator has paused the checks of its producer group, so nobody is asked and it is not "
            f"{given_up} until they go on; "
            f"its producer can end it, and {_count(answered, most)} are used up."
        )
    if answered >= most:
        return Explanation(
            f"Pending: {_count(answered, most)} were answered UNKNOWN, so it is {given_up} at {_say(due_ms)} "
            "unless it ends before.",
            NextStep.PARK,
            due_ms,
        )
    ask = "its producer group can fetch the check" if _is_pull(around) else "its producer group is asked"
    if around.now_ms >= life_end_ms:
        return Explanation(
            f"Pending: its longest life ended at {_say(life_end_ms)}{_say_silence(view, around)}, so it is {given_up} "
            f"once {ask} a last time without a decision.",
            NextStep.PARK,
            max(life_end_ms, due_ms or 0),
        )
    parked = f"it is {given_up} at {_say(life_end_ms)} if it is undecided then"
    if due_ms is not None and around.now_ms < due_ms:
        if answered == 0 and view.base == 0:
            text = f"Pending: its producer has not ended it yet; {ask} at {_say(due_ms)}, and {parked}."
        elif answered == 0:
            text = f"Pending again: an operator resumed it; {ask} at {_say(due_ms)}, and {parked}."
        else:
            answers = f"{_count(answered, most)} {'was' if answered == 1 else 'were'} answered UNKNOWN"
            text = f"Pending: {answers}; {ask} again at {_say(due_ms)}, and {parked}."
        return Explanation(text, NextStep.CHECK, due_ms)
    return _explain_due(view, around, parked)


def _explain_due(view: TransactionView, around: Circumstances, parked: str) -> Explanation:
    due_ms, interval_s = view.next_due_ms, around.settings.times.interval_ms / 1000
    silence = _say_silence(view, around)
    if silence:
        text = (
            f"Pending{silence}; that does not count as a check, and its producer group is asked again every "
            f"{interval_s:g} s; {parked}."
        )
        last_ms = max(u.last_ms for u in around.unanswered)
        return Explanation(text, NextStep.CHECK, max(around.now_ms, last_ms + around.settings.times.interval_ms))
    if _is_pull(around):
        text = f"Pending: its check is due since {_say(due_ms)} and its producer group can fetch it now; {parked}."
    elif due_ms is not None and around.now_ms - due_ms > _LATE_MS:
        text = (
            f"Pending: its producer group was to be asked at {_say(due_ms)} and no answer is recorded yet; it is asked "
            f"as soon as its queue has been read and there is a free call; {parked}."
        )
    else:
        text = f"Pending: its producer group is being asked now; {parked}."
    return Explanation(text, NextStep.CHECK, due_ms)


def _say_silence(view: TransactionView, around: Circumstances) -> str:
    """What is wrong with the rounds since it is due; nothing if there was none."""
    # rounds are noted by the clock of who asked
    slack_ms = min(_LATE_MS, around.settings.times.interval_ms // 2)
    later = [u for u in around.unanswered if view.next_due_ms is None or u.last_ms >= view.next_due_ms - slack_ms]
    if not later:
        return ""
    last = max(later, key=lambda rounds: rounds.last_ms)
    word, _, status = last.failure.partition(" ")
    failure = _SILENT.get(word, f"there was no answer ({last.failure})")
    failure = f"{failure} ({status})" if status else failure
    rounds = f"once, at {_say(last.last_ms)}"
    if last.count > 1:
        rounds = f"{last.count} times, from {_say(last.first_ms)} to {_say(last.last_ms)}"
    return f": {failure}{f' ({last.endpoint})' if last.endpoint else ''}, {rounds}"


def _is_pull(around: Circumstances) -> bool:
    return around.settings.calls.mode is CheckMode.PULL


def _count(answered: int, most: int) -> str:
    return f"{answered} of {most} checks"


def _name_state(view: TransactionView) -> str:
    return f"{view.state}{', blocked' if view.blocked else ''}"


def _say_end(view: TransactionView) -> str:
    by = _BY.get(view.by or "", "")
    return " ".join(part for part in (by, f"at {_say(view.ended_ms)}" if view.ended_ms is not None else "") if part)


def _say(time_ms: int | None) -> str:
    """A moment that is not known is said so."""
    return "a time that is not known" if time_ms is None else show_second(time_ms)
