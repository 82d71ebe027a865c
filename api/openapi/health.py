"""Descriptions of the health routes."""

from api.openapi.operation import HEALTH, Operation, query_parameter
from api.schemas.answers import LiveAnswer, ReadyAnswer

LIVE = Operation(HEALTH, {200: (LiveAnswer, "Alive.")}).arguments()
READY = Operation(
    HEALTH,
    {200: (ReadyAnswer, "Ready."), 503: (ReadyAnswer, "Promises cannot be kept now.")},
    parameters=(query_parameter("verbose", "Lists each check.", {"type": "boolean", "allowEmptyValue": True}),),
).arguments()
METRICS = Operation(HEALTH, {200: (None, "Prometheus' text format.")}, media_types=("text/plain",)).arguments()
