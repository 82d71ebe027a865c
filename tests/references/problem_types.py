"""docs/problems.md: every problem type with its cause and remedy."""

from collections.abc import Mapping

from api.web.problems import PROBLEMS, TYPE_PREFIX, UNAVAILABLE
from tests.references.markdown import MADE

_INTRODUCTION = """# Problem types

Every error of the HTTP interface is `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).
The last part of `type` is one of the codes below; codes are stable, texts may change. `detail` says what was wrong this
time, `instance` is the request's id, which the bridge's log has too. `outcome` says whether the call changed anything:
`not_applied`, or `unknown`; repeating the call then tells which. It speaks of this call alone: where a repeat is
refused, such as by `unavailable`, an earlier try may still have been applied, and what was unknown stays unknown until
a repeat is answered. The SDK's exceptions carry the same, of all tries together
([which](producers.md#what-can-go-wrong)).
"""
_CAUSES: Mapping[str, str] = {
    "malformed-request": "The bytes are not HTTP/1.1, or a proxy has damaged them or put PROXY protocol before them.",
    "malformed-json": "The body is not strict JSON: a comma too many, a name twice, NaN, another encoding than UTF-8.",
    "unauthenticated": "The call has no key or token, or one that is unknown, revoked or expired.",
    "forbidden": "The caller is known but was not granted this, or Host or Origin are not the bridge's own.",
    "not-found": "The path is wrong, or the caller may not see what it names.",
    "method-not-allowed": "The path exists, but not with this method.",
    "not-acceptable": "The Accept header excludes JSON.",
    "request-timeout": "The request did not arrive within http.receive_seconds.",
    "body-too-large": "The body, or a line of NDJSON, is larger than limits.body_bytes.",
    "uri-too-long": "The path and query are longer than the server reads.",
    "unsupported-media-type": "Content-Type is missing or another one, or the body is compressed.",
    "headers-too-large": "The request's headers are larger than the server reads.",
    "rate-limited": "The principal or the group has used up its quota (the settings under quotas).",
    "internal": "The bridge has a bug.",
    "invalid-request": "A member is missing, unknown, of another type or out of bounds.",
    "message-too-large": "A message is larger than limits.message_bytes or than its topic takes.",
    "invalid-timestamp": "timestamp_ms is not positive, or outside what the topic takes.",
    "unavailable": "The bridge is overloaded, starting or stopping, or Kafka or SQL does not answer.",
    "illegal-topic": "Kafka takes no topic of this name.",
    "reserved-topic": "The topic belongs to Kafka or to the bridge.",
    "unknown-topic": "Nobody has created the topic. A message never creates one.",
    "unknown-partition": "The topic has fewer partitions.",
    "idempotency-key-reused": "An earlier call of the group used this key for other messages.",
    "unknown-transaction": "The id is wrong, or the transaction ended long ago.",
    "unknown-producer-group": "Nobody has made the group, and auto_create_groups is off.",
    "producer-group-mismatch": "The transaction was prepared by another producer group.",
    "producer-group-in-use": "The group has transactions that are pending, parked or blocked.",
    "not-pull-mode": "The group is asked at its endpoints, and fetches no checks.",
    "too-many-endpoints": "Instances lease places faster than they give them back.",
    "already-resolved": "The transaction was committed or rolled back before; the first resolution wins.",
    "body-expired": "Journal and parked topic have dropped the messages, which were kept for their retention time.",
    "given-up": "Kafka lost the log that held the transaction, and an operator gave it up.",
    "not-blocked": "The transaction is not a commit that waits for its topic.",
    "not-parked": "The transaction is pending or has ended.",
    "too-many-keys": "A principal can have two valid keys, and has them.",
    "too-early": "The local transaction may still be running: its first check is not due yet.",
    "callback-url-forbidden": "The endpoint is not https, or at an address that the bridge may not call.",
    "callback-unverified": "The endpoint did not answer the challenge: it is down, or has another secret.",
    "projection-behind": "The searchable copy in SQL does not have the last writes yet.",
    "outcome-unknown": "Kafka or the settler took longer than the call could wait. It may still take effect.",
}
_OUTCOMES = {"not_applied": "Nothing was applied.", "unknown": "It may have been applied."}
_UNLESS = "Nothing was applied, unless its `outcome` is `unknown`: then it may have been."


def make_problems() -> str:
    """The page, with the codes as headings. KeyError for a problem without a cause."""
    parts = [MADE, _INTRODUCTION]
    for row in sorted(PROBLEMS.values(), key=lambda each: (each.status, each.slug)):
        applied = (
            _OUTCOMES[row.outcome.value] if row.outcome else "The problem itself tells whether anything was applied."
        )
        applied = _UNLESS if row is UNAVAILABLE else applied  # a broken COMMIT, a stop, a look for what was sent before
        parts.append(
            f"\n## {row.slug}\n\n{row.status}, {row.title}. {applied}\n\n"
            f"* **Cause**: {_CAUSES[row.slug]}\n* **Remedy**: {row.remedy}\n"
        )
    return "".join(parts) + f"\nThe `type` of a problem is `{TYPE_PREFIX}` and its code, and leads here.\n"
