"""What callers may do: the rules for every call, whichever way it came. Pure."""

from typing import TypeVar

from msgspec.structs import replace

from bridge.core.grants import Rights, Verb
from bridge.core.record import Source
from bridge.core.transaction import TransactionView
from bridge.service.answers import refuse_group, refuse_missing
from bridge.service.contract import EndCall, PrepareCall, RefusalCode, Refused

_ANY_GROUP = "for any producer group"


def refuse_prepare(rights: Rights, call: PrepareCall) -> Refused | None:
    """Why this may not be prepared, whatever else is said of it."""
    for message in call.messages:
        if not rights.may(Verb.PREPARE, call.group, message.topic):
            return refuse_right(Verb.PREPARE, f"for producer group {call.group} and topic {message.topic}")
    return None


T = TypeVar("T")


def scope_end(rights: Rights, call: EndCall) -> EndCall | Refused:
    """The end in the name of a group that the caller may decide for. For him there are no transactions of others."""
    verb = Verb.CHECK if call.source is Source.CHECK else Verb.DECIDE
    if call.group is None:
        only = rights.find_only_group(verb)
        return replace(call, group=only) if only is not None else _refuse_unscoped(rights, verb) or call
    if rights.may(verb, call.group):
        return call
    return refuse_missing(call.transaction_id) if rights.may_somewhere(verb) else refuse_right(verb, _ANY_GROUP)


def _refuse_unscoped(rights: Rights, verb: Verb) -> Refused | None:
    """Why an end that names no group may not be made."""
    if rights.may_everywhere(verb):
        return None
    if not rights.may_somewhere(verb):
        return refuse_right(verb, _ANY_GROUP)
    detail = "which group's? this caller may not decide for all of them"
    return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("/producer_group", detail),))


def hide_others(rights: Rights, answer: T) -> T | Refused:
    """The answer to an end, to somebody who must not learn that another group has such a transaction."""
    if not isinstance(answer, Refused) or answer.code is not RefusalCode.PRODUCER_GROUP_MISMATCH:
        return answer
    is_all_known = rights.may_everywhere(Verb.READ) or answer.transaction_id is None
    return answer if is_all_known else refuse_missing(answer.transaction_id or "")


def refuse_view(rights: Rights, verb: Verb, view: TransactionView) -> Refused | None:
    """Why this may not be done to a transaction that was found; who may not even read it learns nothing of it."""
    if rights.may(verb, view.group):
        return None
    if verb is Verb.READ or not rights.may(Verb.READ, view.group):
        return refuse_missing(view.transaction_id)
    return refuse_right(verb, f"for producer group {view.group}")


def refuse_for_group(rights: Rights, verb: Verb, group: str) -> Refused | None:
    """Why this may not be done to a producer group; to somebody with no right to it, it does not exist."""
    if rights.may(verb, group):
        return None
    is_known = any(rights.may(other, group) for other in Verb)
    return refuse_right(verb, f"for producer group {group}") if is_known else refuse_group(group)


def refuse_right(verb: Verb, what: str) -> Refused:
    """The caller is known, and was not granted this."""
    return Refused(RefusalCode.FORBIDDEN, f"this caller was not granted `{verb.value}` {what}")
