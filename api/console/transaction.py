"""One transaction: why it is as it is, what happened to it, what it holds."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from api.console.render import HEADERS, PREFIX, render
from api.console.text import ShownValue, show_value
from api.web.parse import check_transaction_id
from api.web.problems import NOT_FOUND, Problem, Rejected
from api.web.request import ApiRequest, refuse, who_is
from api.web.road import HttpAnswer, Routes
from bridge.core.explanation import Explanation
from bridge.core.grants import Verb
from bridge.core.message import Message
from bridge.core.transaction import TimelineEvent, TransactionState, TransactionView
from bridge.service.contract import Refused

routes = Routes()

_GAP_MS = 1_000  # shorter ones are no news
_PLACE = re.compile("[0-9]{1,3}")


class TimelineStep(NamedTuple):
    """An event, and how long nothing had happened before it."""

    event: TimelineEvent
    gap_ms: int | None


class ShownMessage(NamedTuple):
    """A message and its value, if it has one."""

    message: Message
    value: ShownValue | None


@routes.add("GET", f"{PREFIX}/transactions/{{transaction_id}}", verb=Verb.READ)
async def show_transaction(request: ApiRequest, transaction_id: str) -> HttpAnswer:
    """All that is known of a transaction."""
    return await render_transaction(request, transaction_id)


async def render_transaction(
    request: ApiRequest, transaction_id: str, refused: Problem | None = None, given_reason: str = ""
) -> HttpAnswer:
    """The page; with `refused`, why an act has changed nothing. Raises Rejected."""
    view, said = await find(request, transaction_id)
    events = await request.services.transactions.timeline(transaction_id, request.caller.rights)
    if isinstance(events, Refused):
        raise refuse(events)
    is_asked = "messages" in request.query
    messages, why_not = await _read_messages(request, view, is_asked=is_asked)
    return render(
        request,
        "transaction.html",
        200 if refused is None else refused.type.status,
        view=view,
        said=said,
        steps=_make_steps(events),
        messages=messages,
        why_not=why_not,
        refused=refused,
        given_reason=given_reason,
        done=request.query.get("done"),
    )


async def find(request: ApiRequest, transaction_id: str) -> tuple[TransactionView, Explanation]:
    """The transaction and why it is so. Raises Rejected."""
    check_transaction_id(transaction_id, "?transaction_id")
    view = await request.services.transactions.get(transaction_id, request.caller.rights)
    if isinstance(view, Refused):
        raise refuse(view)
    said = await request.services.transactions.explain(view)
    if isinstance(said, Refused):
        raise refuse(said)
    return view, said


def _make_steps(events: Sequence[TimelineEvent]) -> list[TimelineStep]:
    gaps = [None, *[later.at_ms - before.at_ms for before, later in pairwise(events)]]
    return [
        TimelineStep(event, gap if gap and gap >= _GAP_MS else None) for event, gap in zip(events, gaps, strict=False)
    ]


async def _read_messages(
    request: ApiRequest, view: TransactionView, *, is_asked: bool
) -> tuple[list[ShownMessage] | None, str]:
    """The messages whole, or why they are not shown. A look at those of a parked one is audited, so it is asked for."""
    if view.state is TransactionState.PARKED and not is_asked:
        return None, "parked"
    found = await request.services.transactions.get_bodies(view, who_is(request, ""))
    if isinstance(found, Refused):
        return None, found.detail
    if found is None:
        return None, "no log has its messages any more"
    return [ShownMessage(one, None if one.value is None else show_value(one.value)) for one in found], ""


@routes.add("GET", f"{PREFIX}/transactions/{{transaction_id}}/messages/{{number}}", verb=Verb.READ)
async def save_value(request: ApiRequest, transaction_id: str, number: str) -> HttpAnswer:
    """A message's value as it is, to be saved, not to be shown."""
    view, _ = await find(request, transaction_id)
    found = await request.services.transactions.get_bodies(view, who_is(request, ""))
    if isinstance(found, Refused):
        raise refuse(found)
    if found is None or not _PLACE.fullmatch(number) or int(number) >= len(found) or found[int(number)].value is None:
        raise Rejected(Problem(NOT_FOUND, "there is no such value"))
    name = f'attachment; filename="{transaction_id}-{int(number)}.bin"'
    headers = (*HEADERS, ("Content-Disposition", name))
    return HttpAnswer(200, found[int(number)].value or b"", headers, "application/octet-stream")
