"""Who an operator is, and why he acts."""

from starlette.requests import Request

from api.bodies import check_property
from api.problems import invalid
from bridge.service.operators import Who

ANONYMOUS = "anonymous"


def who_is(request: Request, reason: str) -> Who:
    """The caller as the audit knows him. Without keys that is no more than his address."""
    host = request.client.host if request.client else "unknown"
    return Who(f"{ANONYMOUS}@{host}", reason)


def check_reason(reason: str) -> str:
    """The reason. Raises Rejected if it is blank or cannot be kept."""
    check_property(reason, "/reason")
    if not reason.strip():
        raise invalid("/reason", "must not be blank")
    return reason
