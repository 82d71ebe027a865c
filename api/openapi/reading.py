"""Descriptions of the routes that list, count and redrive."""

from api.openapi.operation import CURSOR, LIMIT, Body, Json, Operation, path_parameter, query_parameter
from api.schemas.answers import TransactionPage
from api.schemas.operator_answers import AuditPage, RedriveJobAnswer, RedriveJobList, RedrivePreviewAnswer, StatsAnswer
from api.schemas.requests import GROUP_PATTERN, Redrive, StopRedrive

_TAG = "operators"
_LINK = {200: {"Link": 'Where the next page is (`rel="next"`), if there is one.'}}
_TIME: Json = {"type": "string", "format": "date-time"}
_FILTER = (
    query_parameter("producer_group", "Of this group.", {"type": "string", "pattern": GROUP_PATTERN}),
    query_parameter("topic", "With a message to this topic.", {"type": "string"}),
    query_parameter("key", "With a message of this key.", {"type": "string"}),
    query_parameter("key_base64", "The same, in base64.", {"type": "string", "contentEncoding": "base64"}),
    query_parameter("born_after", "Born after.", _TIME),
    query_parameter("born_before", "Born before.", _TIME),
    LIMIT,
    CURSOR,
)
_STATES = {"type": "array", "items": {"type": "string", "enum": ["PREPARED", "COMMITTED", "ROLLED_BACK", "PARKED"]}}
_JOB_ID = path_parameter("job_id", "Id of a job.", "r-1", "^[A-Za-z0-9_-]{1,64}$")

SEARCH = Operation(
    "transactions",
    {200: (TransactionPage, "A page.")},
    parameters=(
        query_parameter("state", "In one of these states; repeated, or with commas between.", _STATES),
        query_parameter("blocked", "Committed, but not yet publishable.", {"type": "boolean"}),
        *_FILTER,
    ),
    headers=_LINK,
).arguments()
STATS = Operation(_TAG, {200: (StatsAnswer, "Counts and lags.")}).arguments()
AUDIT = Operation(_TAG, {200: (AuditPage, "A page.")}, parameters=(LIMIT, CURSOR), headers=_LINK).arguments()
PARKED = Operation(_TAG, {200: (TransactionPage, "A page.")}, parameters=_FILTER, headers=_LINK).arguments()
REDRIVE = Operation(
    _TAG,
    {
        202: (RedriveJobAnswer, "The job has begun."),
        200: (RedrivePreviewAnswer, "With `preview`: what a job would act on."),
    },
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
JOBS = Operation(_TAG, {200: (RedriveJobList, "Newest first.")}, parameters=(LIMIT,)).arguments()
JOB = Operation(_TAG, {200: (RedriveJobAnswer, "The job.")}, ("not-found",), parameters=(_JOB_ID,)).arguments()
STOP_JOB = Operation(
    _TAG,
    {200: (RedriveJobAnswer, "The job as it stands.")},
    ("not-found",),
    Body(StopRedrive, examples={"too fast": {"reason": "the shop is overloaded"}}),
    (_JOB_ID,),
).arguments()
