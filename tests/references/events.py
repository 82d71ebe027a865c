"""docs/reference/events.md: what a timeline and the audit can hold."""

import re
from collections.abc import Mapping
from typing import get_args

from api.setting_sections import WebhookEvent
from api.web.views import EventType
from bridge.core.record import Act
from tests.references.markdown import MADE, code, table
from tests.support.source_tree import PACKAGES, python_files

_INTRODUCTION = """# Events

## Timeline

`outbox-bridge tx timeline ID` and `GET /v1/transactions/ID/timeline` show what happened to one transaction, oldest
first. Each event has `at`, `type` and `by` (`producer`, `check`, `operator` or null), and the members named here.

"""
_TIMELINE: Mapping[str, tuple[str, str]] = {
    "prepared": ("The bridge stored the messages.", "queue_offset"),
    "check_answered": (
        "The bridge asked, and the producer group answered.",
        "number, endpoint, status, latency_ms, answer",
    ),
    "check_unanswered": (
        "The bridge asked and had no answer; equal failures are one event.",
        "first, last, count, failure, endpoint",
    ),
    "end": (
        "A commit or rollback was recorded; `effective` is false if another resolution was there first.",
        "resolution, effective",
    ),
    "parked": ("The bridge stopped asking; an operator decides.", "why, check_times, parked_offset"),
    "resumed": ("An operator gave it a new life.", "actor, reason"),
    "forced": ("An operator decided it.", "resolution, effective, actor, reason"),
    "published": ("Consumers can read its messages.", "receipts"),
    "blocked": ("It is committed and cannot be published now.", "why"),
    "abandoned": ("An operator gave up a blocked commit.", "actor, reason, effective"),
    "given_up": ("An operator gave up the log that held it.", "state"),
}
_AUDIT: Mapping[str, str] = {
    "transaction.force": "decided a transaction",
    "transaction.force.answered": "had this answer to it",
    "transaction.resume": "gave a parked transaction a new life",
    "transaction.abandon": "gave up a blocked commit",
    "transaction.check": "had a producer group asked at once",
    "transaction.read-messages": "read the bodies of messages",
    "bridge.pause": "takes nothing new of any group",
    "bridge.resume": "takes prepares again",
    "producer-group.put": "made a group, or replaced its settings",
    "producer-group.delete": "removed a group",
    "producer-group.pause": "paused its checks, or what it prepares",
    "producer-group.resume": "let go on what was paused",
    "producer-group.rotate-secret": "made a new signing secret",
    "producer-group.register-endpoint": "leased a place to an endpoint",
    "producer-group.remove-endpoint": "ended the lease of an endpoint",
    "principal.put": "made a principal, or replaced its grants",
    "principal.delete": "removed a principal with its keys",
    "key.create": "made a key",
    "key.revoke": "ended a key",
    "redrive.start": "started a job on parked transactions",
    "redrive.stop": "stopped a job",
    "redrive.end": "a job has ended",
    "secrets.rewrap": "encrypted secrets with another key",
    "audit.accept": "accepted that the database was restored to an earlier time",
    "webhook.findings": "told the receivers of webhooks what a report has found",
    "webhook.test": "sent a receiver of webhooks a test",
    "queue.give-up": "gave up a lost log (`migrate --accept-identity`)",
}
_ACT = re.compile(
    r'"((?:audit|key|principal|producer-group|redrive|secrets|transaction|webhook)\.[a-z-]+(?:\.answered)?'
    r'|bridge\.(?:pause|resume)|queue\.give-up)"'
)
_FILES = (".html", ".pem", ".json")


def make_events() -> str:
    """The page. KeyError for an event without a text."""
    types = next(each.extra_json_schema["enum"] for each in get_args(EventType) if hasattr(each, "extra_json_schema"))
    rows = [(code(name), _TIMELINE[name][0], ", ".join(map(code, _TIMELINE[name][1].split(", ")))) for name in types]
    acts = [(code(name), _AUDIT[name]) for name in sorted(_acts_in_code())]
    return (
        MADE + _INTRODUCTION + table(("type", "what happened", "members"), rows) + "\n## Audit\n\n"
        "`outbox-bridge audit list` and `GET /v1/audit` show who did what, newest first. Each entry has `at`,\n"
        "`actor`, `action`, `target`, `reason`, `before` and `after`.\n\n" + table(("action", "the actor ..."), acts)
    )  # fmt: skip


def _acts_in_code() -> set[str]:
    found = {f"transaction.{act.value.lower()}" for act in Act}
    told = set(get_args(WebhookEvent))
    for path in python_files(*PACKAGES):
        found |= set(_ACT.findall(path.read_text()))
    return {name for name in found - told if not name.endswith(_FILES)}
