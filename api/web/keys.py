"""Principals, their grants and their API keys: bodies, routes, answers and their description."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from api.web.bodies import Nothing
from api.web.openapi import Body, Operation, path_parameter
from api.web.parse import check_property
from api.web.problems import NOT_FOUND, Problem, Rejected, invalid
from api.web.request import ApiRequest, Query, or_reject, read_json, read_nothing, who_is
from api.web.road import NO_STORE, HttpAnswer, Routes, answer_list, json_answer
from api.web.views import Time, render_optional_time
from bridge.core.grants import PRINCIPAL_NAME, Grant, Verb, is_pattern, is_principal_name
from bridge.core.transaction import show_time
from bridge.sql.access import Key, Principal

_KEY_ID_PATTERN = "^[a-z2-7]{8}$"
_PATTERN = "^([A-Za-z0-9._-]{1,249}[*]?|[*])$"
PrincipalName = Annotated[str, Meta(examples=["shop"], extra_json_schema={"pattern": PRINCIPAL_NAME})]
Pattern = Annotated[
    str,
    Meta(
        description="A name, the beginning of names and `*`, or `*` for all.",
        examples=["orders*"],
        extra_json_schema={"pattern": _PATTERN},
    ),
]
VerbWord = Literal["prepare", "decide", "check", "read", "operate", "admin"]


class GrantedRight(Struct, forbid_unknown_fields=True):
    """Verbs for some producer groups; `prepare` for some topics only. `check`: to be asked, and to fetch checks."""

    verbs: Annotated[list[VerbWord], Meta(min_length=1, max_length=6)]
    groups: Pattern = "*"
    topics: Pattern = "*"


class PutPrincipal(Struct, forbid_unknown_fields=True):
    """All that a principal may do; replaces what was granted before."""

    grants: Annotated[list[GrantedRight], Meta(max_length=100)] = []


class CreateKey(Struct, forbid_unknown_fields=True):
    """A key of a principal."""

    label: Annotated[str, Meta(min_length=1, max_length=120, examples=["shop-7, spring"])] | None = None
    expires_in_seconds: Annotated[int, Meta(ge=60, le=10 * 366 * 86_400, description="Null: never.")] | None = None


class KeyAnswer(Struct):
    """What is known of a key; the key itself is shown once, when it is made."""

    key_id: str
    label: str | None
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None


class CreatedKey(Struct):
    """A new key. `key` and `signing_secret`: shown this once. With the latter, and `key_id` as AccessKey, clients of
    RocketMQ sign."""

    key: Annotated[str, Meta(examples=["obk_k3v9q2ta_C2FVsBQIhrscChlQIMV-b5sSYspob7oDwqfXz0y1x4E"])]
    key_id: str
    principal: PrincipalName
    expires_at: Time | None
    signing_secret: Annotated[str, Meta(examples=["NPmGqzYnZ2x3mbFh1vC2Fz9nT8pY3Qb0o1l5kJd7uXw"])] | None = None


class PrincipalAnswer(Struct):
    """Who may call, and what for."""

    name: PrincipalName
    created_at: Time
    grants: list[GrantedRight]
    keys: list[KeyAnswer]


class PrincipalList(Struct):
    """In the order of their names."""

    principals: list[PrincipalAnswer]


class PrincipalRemoved(Struct):
    """A principal that is no more, nor are its keys."""

    name: PrincipalName


class KeyRevoked(Struct):
    """A key that ends now: all processes refuse it within seconds."""

    key_id: str


TAG = "keys"
_PRINCIPAL = path_parameter("principal", "Name of a principal.", "shop", PRINCIPAL_NAME)
_KEY_ID = path_parameter("key_id", "Id of a key: the part behind `obk_`.", "k3v9q2ta", _KEY_ID_PATTERN)

LIST = Operation(TAG, {200: (PrincipalList, "All of them.")}).arguments()
PUT = Operation(
    TAG,
    {201: (PrincipalAnswer, "Created."), 200: (PrincipalAnswer, "Replaced.")},
    (),
    Body(
        PutPrincipal,
        examples={
            "a producer": {
                "grants": [{"verbs": ["prepare", "decide", "check", "read"], "groups": "orders", "topics": "orders.*"}]
            },
            "an operator": {"grants": [{"verbs": ["read", "operate"]}]},
        },
    ),
    (_PRINCIPAL,),
).arguments()
DELETE = Operation(
    TAG, {200: (PrincipalRemoved, "Removed.")}, ("not-found",), Body(Nothing, is_required=False), (_PRINCIPAL,)
).arguments()
CREATE_KEY = Operation(
    TAG,
    {201: (CreatedKey, "The key, shown this once.")},
    ("not-found", "too-many-keys"),
    Body(CreateKey, is_required=False, examples={"for a season": {"label": "spring", "expires_in_seconds": 7_776_000}}),
    (_PRINCIPAL,),
).arguments()
REVOKE_KEY = Operation(
    TAG, {200: (KeyRevoked, "Refused from now on.")}, ("not-found",), Body(Nothing, is_required=False), (_KEY_ID,)
).arguments()

routes = Routes()

_put = msgspec.json.Decoder(PutPrincipal)
_create = msgspec.json.Decoder(CreateKey)


@routes.add("GET", "/v1/principals", LIST, verb=Verb.ADMIN, is_for_all=True)
async def list_principals(request: ApiRequest) -> HttpAnswer:
    """Who may call, what for, and with which keys."""
    Query(request.query, ())
    found = or_reject(await request.services.access.list())
    return await answer_list(request, "principals", found, _render)


@routes.add("PUT", "/v1/principals/{principal}", PUT, verb=Verb.ADMIN, is_for_all=True)
async def put_principal(request: ApiRequest, principal: str) -> HttpAnswer:
    """Creates a principal, or replaces what was granted to it."""
    if not is_principal_name(principal):
        raise invalid("?principal", "a name has 1..120 characters of A-Z a-z 0-9 . _ @ : -")
    grants = _read_grants((await read_json(request, _put)).grants)
    access = request.services.access
    is_new = or_reject(await access.put(principal, grants, who_is(request, "")))
    shown = or_reject(await access.get(principal))
    return json_answer(201 if is_new else 200, _render(shown))


@routes.add("DELETE", "/v1/principals/{principal}", DELETE, verb=Verb.ADMIN, is_for_all=True)
async def delete_principal(request: ApiRequest, principal: str) -> HttpAnswer:
    """Removes a principal, its grants and its keys."""
    await read_nothing(request)
    or_reject(await request.services.access.delete(_checked(principal), who_is(request, "")))
    return json_answer(200, PrincipalRemoved(principal))


@routes.add("POST", "/v1/principals/{principal}/keys", CREATE_KEY, verb=Verb.ADMIN, is_for_all=True)
async def create_key(request: ApiRequest, principal: str) -> HttpAnswer:
    """Makes a key, shown once. Two can be valid at a time, so that one replaces the other without a pause."""
    body = await read_json(request, _create, is_optional=True)
    check_property(body.label, "/label")
    life_ms = None if body.expires_in_seconds is None else body.expires_in_seconds * 1000
    made = or_reject(
        await request.services.access.make_key(_checked(principal), body.label, life_ms, who_is(request, ""))
    )
    key = made.key
    signing = request.services.signing
    secret = None if signing is None else signing.make(key.key_id)
    shown = CreatedKey(made.text, key.key_id, key.principal, render_optional_time(key.expires_ms), secret)
    return json_answer(201, shown, NO_STORE)


@routes.add("DELETE", "/v1/keys/{key_id}", REVOKE_KEY, verb=Verb.ADMIN, is_for_all=True)
async def revoke_key(request: ApiRequest, key_id: str) -> HttpAnswer:
    """Ends a key."""
    await read_nothing(request)
    if not re.fullmatch(_KEY_ID_PATTERN, key_id):
        raise Rejected(Problem(NOT_FOUND, f"there is no key {key_id}"))
    or_reject(await request.services.access.revoke(key_id, who_is(request, "")))
    return json_answer(200, KeyRevoked(key_id))


def _checked(principal: str) -> str:
    if not is_principal_name(principal):
        raise Rejected(Problem(NOT_FOUND, "no such principal"))
    return principal


def _read_grants(given: Sequence[GrantedRight]) -> list[Grant]:
    for index, right in enumerate(given):
        for name, pattern in (("groups", right.groups), ("topics", right.topics)):
            if not is_pattern(pattern):
                raise invalid(f"/grants/{index}/{name}", "a name, the beginning of names and *, or *")
    return [Grant(Verb(verb), right.groups, right.topics) for right in given for verb in right.verbs]


def _render(principal: Principal) -> PrincipalAnswer:
    verbs: dict[tuple[str, str], list[VerbWord]] = {}
    for grant in principal.grants:
        verbs.setdefault((grant.groups, grant.topics), []).append(grant.verb.value)
    grants = [GrantedRight(found, *patterns) for patterns, found in verbs.items()]
    return PrincipalAnswer(
        principal.name, show_time(principal.created_ms), grants, [_render_key(key) for key in principal.keys]
    )


def _render_key(key: Key) -> KeyAnswer:
    expires, used = render_optional_time(key.expires_ms), render_optional_time(key.last_used_ms)
    return KeyAnswer(key.key_id, key.label, show_time(key.created_ms), expires, used)
