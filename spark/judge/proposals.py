"""What a run proposes to be done: calls to the bridge's API that cannot make anything worse. Pure.

Nothing that would publish is proposed unless it is proved that nothing of the transaction was ever published: what
is missing, for whatever reason, proves nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spark.judge.findings import Finding
from spark.judge.history import TransactionHistory, replay, why_not_unpublished
from spark.judge.rules import FindingKind
from spark.read.envelope import Event, OpState
from spark.read.scope import Scope


def propose_repair(finding: Finding, events: Sequence[Event], scope: Scope) -> dict[str, Any] | None:
    """A call with what must be true before it; or nothing: what was published is for people to look at."""
    call = _call_for(finding, replay(finding.transaction_id, events), scope)
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


def _call_for(finding: Finding, story: TransactionHistory, scope: Scope) -> tuple[str, dict[str, str] | None] | None:
    if finding.kind not in {FindingKind.STALE, FindingKind.UNSETTLED} or why_not_unpublished(story, scope) is not None:
        return None
    if finding.kind == FindingKind.STALE:
        return ("check", None) if story.decision is None else None
    if story.decision is None:
        return None
    resolution = "COMMIT" if story.decision == OpState.COMMITTED else "ROLLBACK"
    return "force", {"resolution": resolution, "reason": f"reconciliation: {finding.detail}"}
