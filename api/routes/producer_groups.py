"""Producer groups: settings, endpoints, secrets, health."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import check_group
from api.filters import PAGE_PARAMETERS, link_header, page_of
from api.group_bodies import make_group
from api.openapi.groups import (
    DELETE_GROUP,
    GET_GROUP,
    LIST_GROUPS,
    PUT_GROUP,
    REGISTER_ENDPOINT,
    REMOVE_ENDPOINT,
    ROTATE_SECRET,
)
from api.problems import invalid
from api.queries import Query
from api.reading import json_answer, read_json, refuse, services_of
from api.rendering_groups import render_group, render_registered, render_saved
from api.routes.operators import who_is
from api.schemas.operator_answers import EndpointRemovedAnswer, GroupList, GroupRemoved, SecretAnswer
from api.schemas.requests import Nothing, PutGroup, RegisterEndpoint
from bridge.service.contract import Refused

router = APIRouter()

_group = msgspec.json.Decoder(PutGroup)
_nothing = msgspec.json.Decoder(Nothing)
_endpoint = msgspec.json.Decoder(RegisterEndpoint)


@router.put("/v1/producer-groups/{group}", **PUT_GROUP)
async def put(request: Request, group: str) -> Response:
    """Creates a group, or replaces its settings and static endpoints."""
    check_group(group, "?group")
    settings, urls = make_group(await read_json(request, _group))
    saved = await services_of(request).groups.put(group, settings, urls, who_is(request, ""))
    if isinstance(saved, Refused):
        raise refuse(saved)
    headers = {"Location": f"/v1/producer-groups/{group}", "Cache-Control": "no-store"}
    return json_answer(201 if saved.is_created else 200, render_saved(saved), headers)


@router.get("/v1/producer-groups/{group}", **GET_GROUP)
async def get(request: Request, group: str) -> Response:
    """Settings, endpoints with their health, counts."""
    check_group(group, "?group")
    Query(request.query_params, ())
    services = services_of(request)
    health = await services.groups.get(group)
    if isinstance(health, Refused):
        raise refuse(health)
    return json_answer(200, render_group(health, services.now_ms()))


@router.get("/v1/producer-groups", **LIST_GROUPS)
async def list_groups(request: Request) -> Response:
    """Groups in the order of their names."""
    services = services_of(request)
    limit, cursor = page_of(Query(request.query_params, PAGE_PARAMETERS), services.limits.page)
    if cursor is not None:
        check_group(cursor, "?cursor")
    found = await services.groups.list(limit, cursor or "")
    if isinstance(found, Refused):
        raise refuse(found)
    following = found[-1].group.name if len(found) == limit else None
    now_ms = services.now_ms()
    page = GroupList([render_group(health, now_ms) for health in found], following)
    return json_answer(200, page, link_header(request, following))


@router.delete("/v1/producer-groups/{group}", **DELETE_GROUP)
async def delete(request: Request, group: str) -> Response:
    """Removes a group without pending, parked or blocked transactions."""
    check_group(group, "?group")
    Query(request.query_params, ())
    await read_json(request, _nothing, is_optional=True)
    refused = await services_of(request).groups.delete(group, who_is(request, ""))
    if refused is not None:
        raise refuse(refused)
    return json_answer(200, GroupRemoved(group))


@router.post("/v1/producer-groups/{group}/rotate-secret", **ROTATE_SECRET)
async def rotate_secret(request: Request, group: str) -> Response:
    """Makes a new signing secret, shown once; the old one signs too for 24 h."""
    check_group(group, "?group")
    Query(request.query_params, ())
    await read_json(request, _nothing, is_optional=True)
    secret = await services_of(request).groups.rotate_secret(group, who_is(request, ""))
    if isinstance(secret, Refused):
        raise refuse(secret)
    return json_answer(200, SecretAnswer(group, secret), {"Cache-Control": "no-store"})


@router.post("/v1/producer-groups/{group}/endpoints", **REGISTER_ENDPOINT)
async def register_endpoint(request: Request, group: str) -> Response:
    """A live instance can be asked at its URL for the length of a lease; repeat it to renew."""
    check_group(group, "?group")
    Query(request.query_params, ())
    body = await read_json(request, _endpoint)
    lease_ms = round(body.lease_seconds * 1000)
    registered = await services_of(request).groups.register_endpoint(group, body.url, lease_ms, who_is(request, ""))
    if isinstance(registered, Refused):
        raise refuse(registered)
    return json_answer(200, render_registered(registered))


@router.delete("/v1/producer-groups/{group}/endpoints", **REMOVE_ENDPOINT)
async def remove_endpoint(request: Request, group: str) -> Response:
    """Ends the lease of an endpoint. Repeating it changes nothing."""
    check_group(group, "?group")
    url = Query(request.query_params, {"url"}).text("url")
    if not url:
        raise invalid("?url", "which endpoint?")
    await read_json(request, _nothing, is_optional=True)
    removed = await services_of(request).groups.remove_endpoint(group, url, who_is(request, ""))
    if isinstance(removed, Refused):
        raise refuse(removed)
    return json_answer(200, EndpointRemovedAnswer(url, removed))
