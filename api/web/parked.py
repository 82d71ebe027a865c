"""Parked transactions and redrive jobs: bodies, routes, answers and their description."""

import re
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from api.web.bodies import Base64, GroupName, Reason, RequestTime
from api.web.openapi import LIMIT, OPERATORS, Body, Merged, Operation, path_parameter
from api.web.parse import check_group, check_property
from api.web.problems import NOT_FOUND, Problem, Rejected, invalid
from api.web.request import ApiRequest, Query, check_reason, or_reject, read_json, who_is
from api.web.road import HttpAnswer, Routes, answer_list, json_answer
from api.web.search import (
    FILTERS,
    NEXT_LINK,
    PARKED_PARAMETERS,
    TransactionPage,
    answer_page,
    page_of,
    parse_key,
    parse_optional_time,
    search_filter,
)
from api.web.views import Time, TransactionAnswer, render_transaction
from bridge.core.grants import Verb
from bridge.core.transaction import show_time
from bridge.service.contract import Refused
from bridge.service.redrive import RedriveAction
from bridge.sql.redrive import RedriveJob
from bridge.sql.search import SearchFilter


class ParkedFilter(Struct, forbid_unknown_fields=True):
    """Which parked transactions; an empty filter matches all."""

    producer_group: GroupName | None = None
    topic: str | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    born_after: RequestTime | None = None
    born_before: RequestTime | None = None


class Redrive(Struct, forbid_unknown_fields=True):
    """An act on all parked transactions that match; audited. `preview`: only counts them."""

    action: Literal["resume", "commit", "rollback"]
    filter: ParkedFilter
    reason: Reason | None = None
    rate_per_second: Annotated[int, Meta(ge=1, le=1_000, description="At most so many a second.")] = 50
    preview: bool = False


class StopRedrive(Struct, forbid_unknown_fields=True):
    """Stops a job after its present step; audited."""

    reason: Reason


class RedriveJobAnswer(Struct):
    """A job and how far it is: `counts` by what became of each transaction."""

    job_id: str
    state: Annotated[str, Meta(extra_json_schema={"enum": ["running", "done", "stopped", "failed"]})]
    action: Annotated[str, Meta(extra_json_schema={"enum": ["resume", "commit", "rollback"]})]
    filter: dict[str, Any]
    actor: str
    reason: str
    rate_per_second: int
    counts: dict[str, int]
    created_at: Time
    updated_at: Time


class RedriveJobList(Struct):
    """Newest first."""

    jobs: list[RedriveJobAnswer]


class RedrivePreviewAnswer(Struct):
    """What a job would act on. `more`: counting stopped at `count`."""

    count: int
    more: bool
    sample: list[TransactionAnswer]


_ANSWER = Merged(
    "RedriveAnswer",
    "The job that has begun; with `preview`, only `count`, `more` and `sample`: what a job would act on.",
    (RedriveJobAnswer, RedrivePreviewAnswer),
    (),
)
_JOB_ID_PARAMETER = path_parameter("job_id", "Id of a job.", "r-1", "^[A-Za-z0-9_-]{1,64}$")
PARKED = Operation(OPERATORS, {200: (TransactionPage, "A page.")}, parameters=FILTERS, headers=NEXT_LINK).arguments()
REDRIVE = Operation(
    OPERATORS,
    {202: (_ANSWER, "The job has begun."), 200: (_ANSWER, "With `preview`: what a job would act on.")},
    body=Body(
        Redrive,
        examples={
            "look first": {"action": "resume", "filter": {"producer_group": "orders"}, "preview": True},
            "then act": {
                "action": "resume",
                "filter": {"producer_group": "orders"},
                "reason": "the shop answers again",
                "rate_per_second": 50,
            },
        },
    ),
    headers={202: {"Location": "Path of the job."}},
).arguments()
JOBS = Operation(OPERATORS, {200: (RedriveJobList, "Newest first.")}, parameters=(LIMIT,)).arguments()
JOB = Operation(
    OPERATORS, {200: (RedriveJobAnswer, "The job.")}, ("not-found",), parameters=(_JOB_ID_PARAMETER,)
).arguments()
STOP_JOB = Operation(
    OPERATORS,
    {200: (RedriveJobAnswer, "The job as it stands.")},
    ("not-found",),
    Body(StopRedrive, examples={"too fast": {"reason": "the shop is overloaded"}}),
    (_JOB_ID_PARAMETER,),
).arguments()


def render_job(job: RedriveJob) -> RedriveJobAnswer:
    """A redrive job; times in its filter as elsewhere."""
    shown = {
        name.removesuffix("_ms"): show_time(value) if name.endswith("_ms") else value
        for name, value in job.filter.items()
    }
    return RedriveJobAnswer(
        job_id=job.job_id,
        state=job.state.value,
        action=job.action,
        filter=shown,
        actor=job.actor,
        reason=job.reason,
        rate_per_second=job.rate_per_s,
        counts=dict(job.counts),
        created_at=show_time(job.created_ms),
        updated_at=show_time(job.updated_ms),
    )


def parked_filter(body: ParkedFilter) -> SearchFilter:
    """The filter of a redrive."""
    if body.producer_group is not None:
        check_group(body.producer_group, "/filter/producer_group")
    check_property(body.topic, "/filter/topic")
    return SearchFilter(
        group=body.producer_group,
        topic=body.topic,
        key=parse_key(body.key, body.key_base64, "/filter/"),
        born_after_ms=parse_optional_time(body.born_after, "/filter/born_after"),
        born_before_ms=parse_optional_time(body.born_before, "/filter/born_before"),
    )


routes = Routes()

_redrive = msgspec.json.Decoder(Redrive)
_stop = msgspec.json.Decoder(StopRedrive)
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@routes.add("GET", "/v1/parked", PARKED, verb=Verb.READ)
async def list_parked(request: ApiRequest) -> HttpAnswer:
    """Parked transactions that match, newest first."""
    services = request.services
    query = Query(request.query, PARKED_PARAMETERS)
    limit, cursor = page_of(query, services.limits.page)
    page = or_reject(await services.parked.list(search_filter(query, request.caller.rights), limit, cursor))
    return await answer_page(request, "transactions", page.transactions, render_transaction, page.next)


@routes.add("POST", "/v1/parked/redrive", REDRIVE, verb=Verb.OPERATE)
async def redrive_parked(request: ApiRequest) -> HttpAnswer:
    """Resumes, commits or rolls back all that match, as a job. With `preview`, only shows what it would act on."""
    body = await read_json(request, _redrive)
    rights = request.caller.rights
    wanted = parked_filter(body.filter)
    if body.preview:
        is_visible = None if rights.may_everywhere(Verb.READ) else partial(rights.may, Verb.READ)
        return await _preview(request, replace(wanted, is_visible=is_visible))
    if body.reason is None:
        raise invalid("/reason", "a reason is needed")
    who = who_is(request, check_reason(body.reason))
    action = RedriveAction(body.action)
    job = found_job(await request.services.parked.redrive(wanted, action, body.rate_per_second, who))
    return json_answer(202, render_job(job), (("Location", f"/v1/parked/redrive/{job.job_id}"),))


@routes.add("GET", "/v1/parked/redrive", JOBS, verb=Verb.READ)
async def list_redrive_jobs(request: ApiRequest) -> HttpAnswer:
    """The newest jobs."""
    services = request.services
    limit = Query(request.query, {"limit"}).integer("limit", 100, 1, services.limits.page)
    jobs = or_reject(await services.parked.list_jobs(limit, request.caller.rights))
    return await answer_list(request, "jobs", jobs, render_job)


@routes.add("GET", "/v1/parked/redrive/{job_id}", JOB, verb=Verb.READ)
async def get_redrive_job(request: ApiRequest, job_id: str) -> HttpAnswer:
    """How far a job is."""
    Query(request.query, ())
    return json_answer(
        200, render_job(found_job(await request.services.parked.get_job(checked_job_id(job_id), request.caller.rights)))
    )


@routes.add("POST", "/v1/parked/redrive/{job_id}/stop", STOP_JOB, verb=Verb.OPERATE)
async def stop_redrive_job(request: ApiRequest, job_id: str) -> HttpAnswer:
    """Stops a job after its present step. Stopping it again changes nothing."""
    body = await read_json(request, _stop)
    who = who_is(request, check_reason(body.reason))
    return json_answer(200, render_job(found_job(await request.services.parked.stop(checked_job_id(job_id), who))))


async def _preview(request: ApiRequest, wanted: SearchFilter) -> HttpAnswer:
    preview = or_reject(await request.services.parked.preview(wanted))
    sample = [render_transaction(view) for view in preview.sample]
    return json_answer(200, RedrivePreviewAnswer(preview.count, preview.is_more, sample))


def checked_job_id(job_id: str) -> str:
    """The id, if a job can have it. Raises Rejected."""
    if _JOB_ID.fullmatch(job_id) is None:
        raise Rejected(Problem(NOT_FOUND, "no such job"))
    return job_id


def found_job(job: RedriveJob | Refused | None) -> RedriveJob:
    """The job, if it was found. Raises Rejected."""
    if job is None:
        raise Rejected(Problem(NOT_FOUND, "no such job"))
    return or_reject(job)
