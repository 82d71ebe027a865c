"""Descriptions of the routes of producer groups."""

from api.openapi.operation import CURSOR, GROUP, LIMIT, Body, Operation, query_parameter
from api.schemas.callback import CheckCall
from api.schemas.operator_answers import (
    EndpointRegisteredAnswer,
    EndpointRemovedAnswer,
    GroupAnswer,
    GroupList,
    GroupRemoved,
    GroupSavedAnswer,
    SecretAnswer,
)
from api.schemas.requests import ClaimChecks, Nothing, PutGroup, RegisterEndpoint

_TAG = "producer groups"
_LOCATION = {"Location": "Path of the group."}

PUT_GROUP = Operation(
    _TAG,
    {
        201: (GroupSavedAnswer, "Created; with its signing secret, shown this once."),
        200: (GroupSavedAnswer, "Replaced; leased endpoints stay."),
    },
    ("callback-url-forbidden",),
    Body(
        PutGroup,
        examples={
            "an endpoint": {"endpoints": [{"url": "https://orders.example.com/check"}]},
            "patient": {
                "endpoints": [{"url": "https://orders.example.com/check"}],
                "check": {"transaction_timeout_seconds": 60, "interval_seconds": 120, "max_checks": 30},
            },
            "fetches its checks": {"check": {"mode": "pull"}},
        },
    ),
    (GROUP,),
    headers={201: _LOCATION, 200: _LOCATION},
).arguments()
GET_GROUP = Operation(
    _TAG, {200: (GroupAnswer, "The group.")}, ("unknown-producer-group",), parameters=(GROUP,)
).arguments()
LIST_GROUPS = Operation(
    _TAG,
    {200: (GroupList, "A page.")},
    parameters=(LIMIT, CURSOR),
    headers={200: {"Link": 'Where the next page is (`rel="next"`), if there is one.'}},
).arguments()
DELETE_GROUP = Operation(
    _TAG,
    {200: (GroupRemoved, "Removed.")},
    ("unknown-producer-group", "producer-group-in-use", "projection-behind"),
    Body(Nothing, is_required=False),
    (GROUP,),
).arguments()
ROTATE_SECRET = Operation(
    _TAG,
    {200: (SecretAnswer, "The new secret, shown this once.")},
    ("unknown-producer-group",),
    Body(Nothing, is_required=False),
    (GROUP,),
).arguments()
REGISTER_ENDPOINT = Operation(
    _TAG,
    {200: (EndpointRegisteredAnswer, "Asked from now on, or for longer.")},
    ("unknown-producer-group", "callback-url-forbidden", "too-many-endpoints"),
    Body(
        RegisterEndpoint,
        examples={"an instance": {"url": "https://orders-7.example.com/check", "lease_seconds": 60}},
    ),
    (GROUP,),
).arguments()
REMOVE_ENDPOINT = Operation(
    _TAG,
    {200: (EndpointRemovedAnswer, "Asked no more, unless a PUT named it.")},
    ("unknown-producer-group",),
    Body(Nothing, is_required=False),
    (
        GROUP,
        query_parameter("url", "As it was registered.", {"type": "string", "minLength": 1}) | {"required": True},
    ),
).arguments()
CLAIM_CHECKS = Operation(
    _TAG,
    {200: (CheckCall, "The checks, leased to the caller; none if none came due in time. As a call would send them.")},
    ("unknown-producer-group", "not-pull-mode", "projection-behind"),
    Body(
        ClaimChecks,
        is_required=False,
        examples={
            "wait for some": {"limit": 100, "wait_seconds": 30, "lease_seconds": 60},
            "look once": {"wait_seconds": 0},
        },
    ),
    (GROUP,),
).arguments()
