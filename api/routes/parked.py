"""Parked transactions, and acts on many of them at once."""

import re

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.filters import PARKED_PARAMETERS, link_header, page_of, parked_filter, search_filter
from api.openapi.reading import JOB, JOBS, PARKED, REDRIVE, STOP_JOB
from api.problems import NOT_FOUND, Problem, Rejected, invalid
from api.queries import Query
from api.reading import json_answer, read_json, refuse, services_of
from api.rendering import render_job, render_page, render_transaction
from api.routes.operators import check_reason, who_is
from api.schemas.operator_answers import RedriveJobList, RedrivePreviewAnswer
from api.schemas.requests import Redrive, StopRedrive
from bridge.service.contract import Refused
from bridge.service.parked import RedriveAction
from bridge.sql.redrive import RedriveJob
from bridge.sql.search import SearchFilter

router = APIRouter()

_redrive = msgspec.json.Decoder(Redrive)
_stop = msgspec.json.Decoder(StopRedrive)
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@router.get("/v1/parked", **PARKED)
async def list_parked(request: Request) -> Response:
    """Parked transactions that match, newest first."""
    services = services_of(request)
    query = Query(request.query_params, PARKED_PARAMETERS)
    limit, cursor = page_of(query, services.limits.page)
    page = await services.parked.list(search_filter(query), limit, cursor)
    if isinstance(page, Refused):
        raise refuse(page)
    return json_answer(200, render_page(page), link_header(request, page.next))


@router.post("/v1/parked/redrive", **REDRIVE)
async def redrive(request: Request) -> Response:
    """Resumes, commits or rolls back all that match, as a job. With `preview`, only tells what it would act on."""
    body = await read_json(request, _redrive)
    wanted = parked_filter(body.filter)
    if body.preview:
        return await _preview(request, wanted)
    if body.reason is None:
        raise invalid("/reason", "a reason is needed")
    who = who_is(request, check_reason(body.reason))
    action = RedriveAction(body.action)
    job = _found(await services_of(request).parked.redrive(wanted, action, body.rate_per_second, who))
    return json_answer(202, render_job(job), {"Location": f"/v1/parked/redrive/{job.job_id}"})


@router.get("/v1/parked/redrive", **JOBS)
async def list_jobs(request: Request) -> Response:
    """The newest jobs."""
    services = services_of(request)
    limit = Query(request.query_params, {"limit"}).integer("limit", 100, 1, services.limits.page)
    jobs = await services.parked.list_jobs(limit)
    if isinstance(jobs, Refused):
        raise refuse(jobs)
    return json_answer(200, RedriveJobList([render_job(job) for job in jobs]))


@router.get("/v1/parked/redrive/{job_id}", **JOB)
async def get_job(request: Request, job_id: str) -> Response:
    """How far a job is."""
    Query(request.query_params, ())
    return json_answer(200, render_job(_found(await services_of(request).parked.get_job(_checked(job_id)))))


@router.post("/v1/parked/redrive/{job_id}/stop", **STOP_JOB)
async def stop_job(request: Request, job_id: str) -> Response:
    """Stops a job after its present step. Stopping it again changes nothing."""
    body = await read_json(request, _stop)
    who = who_is(request, check_reason(body.reason))
    return json_answer(200, render_job(_found(await services_of(request).parked.stop(_checked(job_id), who))))


async def _preview(request: Request, wanted: SearchFilter) -> Response:
    preview = await services_of(request).parked.preview(wanted)
    if isinstance(preview, Refused):
        raise refuse(preview)
    sample = [render_transaction(view) for view in preview.sample]
    return json_answer(200, RedrivePreviewAnswer(preview.count, preview.is_more, sample))


def _checked(job_id: str) -> str:
    if _JOB_ID.fullmatch(job_id) is None:
        raise Rejected(Problem(NOT_FOUND, "no such job"))
    return job_id


def _found(job: RedriveJob | Refused | None) -> RedriveJob:
    if job is None:
        raise Rejected(Problem(NOT_FOUND, "no such job"))
    if isinstance(job, Refused):
        raise refuse(job)
    return job
