"""The history of a run as its clients write it: an `invoke`, later `ok`, `fail` or `unknown` with the same call id.

A call id is the client's name, "-" and a number; a client that starts again takes a new name. Items of a batch are
calls of their own, so are repeats. Times are milliseconds of one clock. An invoke without an end (the client was
killed) counts as unknown. As JSON, one event is one line; see `tests.support.history.lines`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from bridge.core.message import Receipt
from tests.support.history.content import Content


class Call(StrEnum):
    """What was asked of the bridge."""

    PREPARE = "prepare"
    PUBLISH = "publish"  # POST /v1/messages
    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"  # the resolution that changes nothing
    RESUME = "resume"
    FORCE_COMMIT = "force_commit"
    FORCE_ROLLBACK = "force_rollback"
    CHECK = "check"  # ask now
    ABANDON = "abandon"
    GET = "get"


MAKING = frozenset({Call.PREPARE, Call.PUBLISH})
COMMITTING = frozenset({Call.COMMIT, Call.FORCE_COMMIT, Call.PUBLISH})
ROLLING_BACK = frozenset({Call.ROLLBACK, Call.FORCE_ROLLBACK})


class Invoke(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="event", tag="invoke"):
    """A call that may take effect from now on. Prepare and publish: `group`, `messages` and the optional members;
    all others: `transaction_id`. `nonce`: the resolution answers that check (pull mode)."""

    call_id: str
    at_ms: int
    call: Call
    transaction_id: str | None = None
    group: str | None = None
    messages: tuple[Content, ...] = ()
    ordering_key: str | None = None
    idempotency_key: str | None = None
    immunity_s: int | None = None
    max_checks: int | None = None
    nonce: str | None = None


class _End(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="event"):
    """What the client heard. `status` 0: no HTTP answer. `problem`: the code of a problem, "already-resolved"."""

    call_id: str
    at_ms: int
    status: int = 0
    transaction_id: str | None = None
    state: str | None = None
    blocked: bool = False
    receipts: tuple[Receipt, ...] = ()
    problem: str | None = None
    outcome: str | None = None
    check_times: int | None = None
    abandoned: bool = False


class Ok(_End, frozen=True, gc=False, tag="ok"):
    """The bridge said that it is done; with `status` 202 and no state, that it will be done."""


class Fail(_End, frozen=True, gc=False, tag="fail"):
    """The bridge said that it was refused and not applied."""


class Unknown(_End, frozen=True, gc=False, tag="unknown"):
    """Neither: no answer, or one that says so."""


End = Ok | Fail | Unknown
Event = Invoke | Ok | Fail | Unknown


def make_end(call_id: str, at_ms: int, status: int = 0, body: Mapping[str, Any] | None = None) -> End:
    """The end of a call from its HTTP answer, or from an item of a batch's with its `problem` unfolded.

    Status 0: no answer came. Only a problem whose `outcome` says so is a refusal.
    """
    if body is None:
        return Unknown(call_id, at_ms, status)
    problem = body.get("type")
    heard: dict[str, Any] = {
        "transaction_id": body.get("transaction_id"),
        "state": body.get("state"),
        "blocked": bool(body.get("blocked", False)),
        "receipts": read_receipts(body.get("receipts") or ()),
        "problem": None if problem is None else str(problem).rpartition("/")[2],
        "outcome": body.get("outcome"),
        "check_times": body.get("check_times"),
        "abandoned": bool(body.get("abandoned", False)),
    }
    if 200 <= status < 300:
        return Ok(call_id, at_ms, status, **heard)
    is_refused = heard["outcome"] == "not_applied"
    return (Fail if is_refused else Unknown)(call_id, at_ms, status, **heard)


def read_receipts(shown: Sequence[Any]) -> tuple[Receipt, ...]:
    """Receipts as JSON objects or as triples."""
    return tuple(
        Receipt(r["topic"], r["partition"], r["offset"]) if isinstance(r, Mapping) else Receipt(*r) for r in shown
    )
