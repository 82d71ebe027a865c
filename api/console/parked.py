"""Parked transactions: the list, and acts on all that match, as jobs that show how far they are and can be stopped."""

import re
from dataclasses import replace
from functools import partial
from urllib.parse import urlencode

from api.console.entry import NO_REASON, read_form, refuse_read_only
from api.console.render import PREFIX, redirect, render, render_long
from api.console.transactions import without_blanks
from api.web.parked import checked_job_id, found_job
from api.web.problems import invalid
from api.web.request import ApiRequest, Query, check_reason, or_reject, who_is
from api.web.road import HttpAnswer, Routes
from api.web.search import PARKED_PARAMETERS, page_of, search_filter
from bridge.core.grants import Verb
from bridge.service.redrive import MAX_RATE_PER_S, RedriveAction, RedrivePreview
from bridge.sql.search import SearchFilter

routes = Routes()

_ROWS = 50
_JOBS = 10
_RATE_PER_S = 50
_MISTYPED = "Nothing was done: what was typed is not what was asked for."
_TOO_FAST = "Nothing was done: at least 1 and at most {most} a second."
_GROWN = "Nothing was done: more match now than were counted."
TEXTS = (NO_REASON, _MISTYPED, _TOO_FAST, _GROWN)
_PHRASE = re.compile("([a-z]+) ([0-9]{1,8})([+]?)")
_OF_FILTER = PARKED_PARAMETERS - {"limit", "cursor"}


@routes.add("GET", f"{PREFIX}/parked", verb=Verb.READ)
async def show_parked(request: ApiRequest) -> HttpAnswer:
    """Those that wait for a decision, newest first, and the jobs about them."""
    services = request.services
    query = Query(without_blanks(request), PARKED_PARAMETERS)
    _, cursor = page_of(query, services.limits.page)
    wanted = search_filter(query, request.caller.rights)
    page = await services.parked.list(wanted, query.integer("limit", _ROWS, 1, 500), cursor)
    jobs = await services.parked.list_jobs(_JOBS, request.caller.rights)
    page = or_reject(page)
    jobs = or_reject(jobs)
    given = _filter_of(request)
    return await render_long(
        request,
        "parked.html",
        page=page,
        jobs=jobs,
        given=given,
        is_first=cursor is None,
        following=None if page.next is None else urlencode({**given, "cursor": page.next}),
        may_redrive=(not request.services.is_read_only and _may_operate(request, wanted.group)),
    )


@routes.add("GET", f"{PREFIX}/redrive", verb=Verb.OPERATE)
async def show_preview(request: ApiRequest) -> HttpAnswer:
    """How many an act would be for, before anything is done."""
    refuse_read_only(request)
    query = Query(without_blanks(request), _OF_FILTER | {"action"})
    action = query.text("action")
    if action not in set(RedriveAction):
        raise invalid("?action", f"one of {', '.join(RedriveAction)}")
    return await _ask(request, action, search_filter(query, request.caller.rights), _filter_of(request))


async def _ask(
    request: ApiRequest, action: str, wanted: SearchFilter, given: dict[str, str], wrong: str = ""
) -> HttpAnswer:
    preview = await _count(request, wanted)
    # what has to be typed: nobody does that by mistake
    return render(
        request,
        "redrive.html",
        422 if wrong else 200,
        action=action,
        given=given,
        preview=preview,
        phrase=f"{action} {preview.count}{'+' if preview.is_more else ''}",
        most_rate=MAX_RATE_PER_S,
        usual_rate=_RATE_PER_S,
        wrong=wrong,
    )


async def _count(request: ApiRequest, wanted: SearchFilter) -> RedrivePreview:
    rights = request.caller.rights
    is_visible = None if rights.may_everywhere(Verb.READ) else partial(rights.may, Verb.READ)
    return or_reject(await request.services.parked.preview(replace(wanted, is_visible=is_visible)))


@routes.add("POST", f"{PREFIX}/redrive", verb=Verb.OPERATE)
async def begin_redrive(request: ApiRequest) -> HttpAnswer:
    """Begins the job, if what was typed says the act and how many it is for: no more than when they were counted."""
    refuse_read_only(request)
    form = await read_form(request)
    given = {name: value for name, value in form.items() if name in _OF_FILTER and value}
    action, rate = form.get("action", ""), form.get("rate", str(_RATE_PER_S))
    if action not in set(RedriveAction):
        raise invalid("/action", f"one of {', '.join(RedriveAction)}")
    wanted = replace(
        search_filter(Query(type(request.query)(given), _OF_FILTER), request.caller.rights), is_visible=None
    )
    wrong = ""
    counted = _PHRASE.fullmatch(form.get("phrase", ""))
    if counted is None or counted[1] != action or form.get("typed", "").strip() != counted[0]:
        wrong = _MISTYPED
    elif not form.get("reason", "").strip():
        wrong = NO_REASON
    elif not (rate.isascii() and rate.isdigit() and len(rate) < 9 and 1 <= int(rate) <= MAX_RATE_PER_S):
        wrong = _TOO_FAST
    elif not counted[3]:
        now = await _count(request, wanted)
        if now.is_more or now.count > int(counted[2]):
            wrong = _GROWN
    if wrong or counted is None:
        return await _ask(request, action, wanted, given, wrong)
    who = who_is(request, check_reason(form["reason"]))
    job = found_job(await request.services.parked.redrive(wanted, RedriveAction(action), int(rate), who))
    return redirect(request, f"redrive/{job.job_id}", of=counted[2])


@routes.add("GET", f"{PREFIX}/redrive/{{job_id}}", verb=Verb.READ)
async def show_job(request: ApiRequest, job_id: str) -> HttpAnswer:
    """How far a job is."""
    job = found_job(await request.services.parked.get_job(checked_job_id(job_id), request.caller.rights))
    given = request.query.get("of", "")
    expected = int(given) if given.isascii() and given.isdigit() and len(given) < 9 else None
    done = sum(job.counts.values())
    template = "job_part.html" if b"hx-request" in request.fields else "job.html"
    may_stop = not request.services.is_read_only and _may_operate(request, job.filter.get("producer_group"))
    return render(request, template, job=job, done=done, expected=expected, may_stop=may_stop)


@routes.add("POST", f"{PREFIX}/redrive/{{job_id}}/stop", verb=Verb.OPERATE)
async def stop_job(request: ApiRequest, job_id: str) -> HttpAnswer:
    """Stops a job after its present step."""
    refuse_read_only(request)
    who = who_is(request, check_reason((await read_form(request)).get("reason", "")))
    found_job(await request.services.parked.stop(checked_job_id(job_id), who))
    return redirect(request, f"redrive/{job_id}")


def _filter_of(request: ApiRequest) -> dict[str, str]:
    return {name: value for name, value in request.query.multi_items() if value and name in _OF_FILTER}


def _may_operate(request: ApiRequest, group: str | None) -> bool:
    rights = request.caller.rights
    return rights.may_everywhere(Verb.OPERATE) or (group is not None and rights.may(Verb.OPERATE, group))
