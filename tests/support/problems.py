"""What every problem must look like."""

from collections.abc import Mapping
from typing import Any

import httpx2

from api.web.problems import PROBLEMS, TYPE_PREFIX


def check_problem(response: httpx2.Response, status: int, code: str) -> Mapping[str, Any]:
    """The members of a problem, which are those of RFC 9457 and ours."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    problem: Mapping[str, Any] = response.json()
    assert problem["type"] == TYPE_PREFIX + code, problem
    assert problem["status"] == status
    assert problem["title"] == PROBLEMS[code].title
    assert problem["detail"]
    assert problem["instance"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    assert problem.get("outcome") in {None, "not_applied", "unknown"}
    if status == 503:
        assert int(response.headers["retry-after"]) >= 1
    return problem


def named_places(problem: Mapping[str, Any]) -> set[str]:
    """JSON pointers, and parameters as `?name`."""
    return {error["pointer"] if "pointer" in error else "?" + error["parameter"] for error in problem.get("errors", ())}
