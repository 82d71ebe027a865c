"""The table of problems is whole, and every problem has its shape."""

import json
from dataclasses import replace

import pytest

from api.web.problems import (
    INVALID_REQUEST,
    PROBLEMS,
    UNAVAILABLE,
    Problem,
    encode_problem,
    problem_headers,
    problem_of,
)
from bridge.core.transaction import TransactionState
from bridge.service.contract import Outcome, RefusalCode, Refused

# From the contract: code and status of every error that can be met today.
CONTRACT = {
    "malformed-json": 400,
    "malformed-request": 400,
    "forbidden": 403,
    "reserved-topic": 403,
    "not-found": 404,
    "unknown-transaction": 404,
    "unknown-producer-group": 404,
    "method-not-allowed": 405,
    "not-acceptable": 406,
    "unauthenticated": 401,
    "rate-limited": 429,
    "too-many-keys": 409,
    "request-timeout": 408,
    "producer-group-mismatch": 409,
    "producer-group-in-use": 409,
    "too-many-endpoints": 409,
    "not-pull-mode": 409,
    "already-resolved": 409,
    "body-expired": 409,
    "given-up": 409,
    "not-parked": 409,
    "not-blocked": 409,
    "too-early": 409,
    "message-too-large": 413,
    "body-too-large": 413,
    "uri-too-long": 414,
    "unsupported-media-type": 415,
    "invalid-request": 422,
    "illegal-topic": 422,
    "unknown-topic": 422,
    "unknown-partition": 422,
    "invalid-timestamp": 422,
    "idempotency-key-reused": 422,
    "callback-url-forbidden": 422,
    "callback-unverified": 422,
    "headers-too-large": 431,
    "internal": 500,
    "unavailable": 503,
    "projection-behind": 503,
    "outcome-unknown": 504,
}


def test_table_is_the_contract() -> None:
    """No code without its status, none more, none less."""
    assert {slug: row.status for slug, row in PROBLEMS.items()} == CONTRACT


@pytest.mark.parametrize("code", RefusalCode)
def test_every_refusal_is_a_problem(code: RefusalCode) -> None:
    """The service can refuse nothing that HTTP cannot say."""
    problem = problem_of(Refused(code, "why"))
    assert problem.type.slug == code.value
    assert problem.type.uri.rpartition("/")[2] == code.value
    assert problem.type.status != 503 or problem.retry_after_s is not None


@pytest.mark.parametrize("row", PROBLEMS.values(), ids=lambda row: row.slug)
def test_every_row_says_what_to_do(row: object) -> None:
    """A title without a remedy helps nobody."""
    assert row.remedy.endswith(".")
    assert row.title


def test_members_are_those_of_the_occurrence() -> None:
    """Known facts are told, unknown ones left out."""
    refused = Refused(
        RefusalCode.ALREADY_RESOLVED, "it is COMMITTED", transaction_id="id", state=TransactionState.COMMITTED
    )
    assert json.loads(encode_problem(problem_of(refused), "request")) == {
        "type": "https://outbox-bridge.dev/problems/already-resolved",
        "title": "Transaction was resolved otherwise",
        "status": 409,
        "detail": "it is COMMITTED",
        "instance": "request",
        "outcome": "not_applied",
        "transaction_id": "id",
        "state": "COMMITTED",
    }


def test_outcome_of_the_occurrence_wins() -> None:
    """A 503 after an append is not "not applied"."""
    problem = Problem(UNAVAILABLE, "stopped", Outcome.UNKNOWN, retry_after_s=3)
    members = json.loads(encode_problem(problem, "r"))
    assert (members["outcome"], members["retry_after"]) == ("unknown", 3)
    assert problem_headers(problem)["Retry-After"] == "3"
    assert "outcome" not in json.loads(
        encode_problem(problem_of(Refused(RefusalCode.PROJECTION_BEHIND, "d", None)), "r")
    )


def test_places_are_pointers_or_parameters() -> None:
    """Pointers move with the document they are in, parameters do not."""
    problem = Problem(INVALID_REQUEST, "d", errors=(("/a", "x"), ("", "y"), ("?limit", "z"), ("cursor", "w")))
    members = json.loads(encode_problem(problem.at("/transactions/3"), "r"))
    assert members["errors"] == [
        {"pointer": "/transactions/3/a", "detail": "x"},
        {"pointer": "/transactions/3", "detail": "y"},
        {"parameter": "limit", "detail": "z"},
        {"parameter": "cursor", "detail": "w"},
    ]
    assert replace(problem, errors=()).at("/x").errors == ()
