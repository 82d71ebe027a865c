"""What a run proposes to be done: calls to the bridge's API that cannot make anything worse. Pure.

Nothing that would publish is proposed unless it is proved that nothing of the transaction was ever published: what
is missing, for whatever reason, proves nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spark.columns import Event, OpState
from spark.findings import Finding
from spark.rules import Kind
from spark.scope import Scope
from spark.story import Story, tell
from spark.unpublished import why_not_unpublished


def propose_repair(finding: Finding, events: Sequence[Event], scope: Scope) -> dict[str, Any] | None:
    """A call with what must be true before it; or nothing: what was published is for people to look at."""
    call = _call_for(finding, tell(finding.transaction_id, events), scope)
    if call is None:
        return None
    verb, body = call
    return {
        "transaction_id": finding.transaction_id,
        "kind": finding.kind,
        "method": "POST",
        "path": f"/v1/transactions/{finding.transaction_id}/{verb}",
        "body": body,
        "precondition": {"state": ["PREPARED"], "published": False},
        "evidence": [asdict(leg) for leg in finding.legs],
    }


def _call_for(finding: Finding, story: Story, scope: Scope) -> tuple[str, dict[str, str] | None] | None:
    if finding.kind not in {Kind.STALE, Kind.UNSETTLED} or why_not_unpublished(story, scope) is not None:
        return None
    if finding.kind == Kind.STALE:
        return ("check", None) if story.decision is None else None
    if story.decision is None:
        return None
    resolution = "COMMIT" if story.decision == OpState.COMMITTED else "ROLLBACK"
    return "force", {"resolution": resolution, "reason": f"reconciliation: {finding.detail}"}
