"""The audit as a chain. Each entry has a link: a MAC over entry, number and the link before, with a key of the bridge.

A head is the number and MAC of a link, appended to a topic: who can write to the database, and even has the key,
cannot change what lies below a head without its being seen. BLAKE2b with a key, 32 bytes.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hmac import compare_digest
from typing import NamedTuple

from bridge.core.keyring import Keyring

_LINK, _HEAD = b"audit link", b"audit head"
_BYTES = 32
_VERSION = 1
_MEMBERS = ("v", "number", "link", "at_ms", "by", "accepts")


class AuditRow(NamedTuple):
    """An entry as SQL has it."""

    audit_id: int
    at_ms: int
    actor: str
    what: str
    target: str
    reason: str | None
    before: str | None
    after: str | None


class AuditLink(NamedTuple):
    """`adopted_ms`: when the entry got its link, if somebody else had written it without one; it is in the MAC."""

    number: int
    audit_id: int
    adopted_ms: int | None
    mac: str


class AuditHead(NamedTuple):
    """Up to which link the chain is proven: what the topic says of it."""

    number: int
    link: str


class ToldHead(NamedTuple):
    """`accepts`: an operator has said that the chain goes on from here, whatever earlier heads say."""

    head: AuditHead
    accepts: bool


def make_link(keyring: Keyring, row: AuditRow, before: AuditLink | None, adopted_ms: int | None = None) -> AuditLink:
    """The link of an entry behind the last one that there is."""
    number = 1 if before is None else before.number + 1
    key_id = keyring.key_ids[0] if keyring.key_ids else ""
    mac = _sign(keyring, key_id, _LINK, ["" if before is None else before.mac, number, adopted_ms, *row])
    return AuditLink(number, row.audit_id, adopted_ms, mac)


def is_link_right(keyring: Keyring, link: AuditLink, row: AuditRow, mac_before: str) -> bool | None:
    """None: it was made with a key that is not known."""
    return _compare(keyring, link.mac, _LINK, [mac_before, link.number, link.adopted_ms, *row])


def encode_head(keyring: Keyring, told_head: ToldHead, now_ms: int, owner: str) -> bytes:
    """The value of its record."""
    key_id = keyring.key_ids[0] if keyring.key_ids else ""
    head, accepts = told_head
    told = [_VERSION, head.number, head.link, now_ms, owner, accepts]
    members = dict(zip(_MEMBERS, told, strict=True)) | {"mac": _sign(keyring, key_id, _HEAD, told)}
    return json.dumps(members, separators=(",", ":")).encode()


def decode_head(keyring: Keyring, value: bytes | None) -> ToldHead | None:
    """None: the record is not this bridge's."""
    try:
        members = json.loads(value or b"")
        told, mac = [members[name] for name in _MEMBERS], members["mac"]
        if told[0] != _VERSION or not _compare(keyring, mac, _HEAD, told):
            return None
        return ToldHead(AuditHead(int(told[1]), str(told[2])), bool(told[5]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _sign(keyring: Keyring, key_id: str, purpose: bytes, told: Sequence[object]) -> str:
    """Without any key, as in tools that prove nothing, a plain hash."""
    begun = keyring.begin(key_id, purpose, _BYTES) if key_id else hashlib.blake2b(digest_size=_BYTES, person=purpose)
    begun.update(json.dumps(told, separators=(",", ":")).encode())
    return f"{key_id}-{begun.hexdigest()}"


def _compare(keyring: Keyring, mac: str, purpose: bytes, told: Sequence[object]) -> bool | None:
    key_id = mac.rpartition("-")[0]
    if key_id not in (keyring.key_ids or ("",)):
        return None
    return compare_digest(mac.encode(), _sign(keyring, key_id, purpose, told).encode())


class Flaw(StrEnum):
    """What can be wrong with the chain."""

    ALTERED = "altered"
    REMOVED = "removed"
    LINKS_MISSING = "links-missing"
    CUT = "cut"
    REWRITTEN = "rewritten"
    UNKNOWN_KEY = "unknown-key"
    OUTSIDE = "outside"
    HEADS_REMOVED = "heads-removed"


class ChainFinding(NamedTuple):
    """`number`: the first link that it concerns; `audit_id`: its entry, if there is one."""

    flaw: Flaw
    number: int
    audit_id: int | None
    detail: str


SHOWN = 100
UPGRADE_MS = 86_400_000


@dataclass(slots=True)
class ChainJudge:
    """Looks at links in the order of their numbers, then at heads. It begins behind `last`.

    `outside_until_ms`: entries that were adopted later are findings; None: those later than a day after the first link,
    which an upgrade from a version without links takes.
    """

    keyring: Keyring
    outside_until_ms: int | None = None
    last: AuditHead = field(default=AuditHead(0, ""))
    entries: int = 0
    adopted: int = 0
    proven: int = 0
    flaws: int = 0
    findings: list[ChainFinding] = field(default_factory=list)

    def look(self, link: AuditLink, row: AuditRow | None) -> None:
        """The next link, and its entry if that is there. A flaw is told once: what follows is judged for itself."""
        expected, self.entries = self.last.number + 1, self.entries + 1
        is_right = row is not None and is_link_right(self.keyring, link, row, self.last.link)
        if link.number != expected:
            detail = f"links {expected} to {link.number - 1} are missing, and their entries cannot be proven"
            self._tell(Flaw.LINKS_MISSING, expected, None, detail)
        if row is None:
            self._tell(Flaw.REMOVED, link.number, link.audit_id, f"entry {link.audit_id} was removed")
        elif is_right is None:
            key_id = link.mac.rpartition("-")[0]
            detail = (
                f"entry {link.audit_id}: its link was made with the key {key_id!r}, which this bridge does not have"
            )
            self._tell(Flaw.UNKNOWN_KEY, link.number, link.audit_id, detail)
        elif not is_right and link.number == expected:
            detail = f"entry {link.audit_id}, or its link, is not what was written: altered, exchanged or inserted"
            self._tell(Flaw.ALTERED, link.number, link.audit_id, detail)
        if self.outside_until_ms is None:
            begun_ms = link.adopted_ms or (0 if row is None else row.at_ms)
            self.outside_until_ms = begun_ms + UPGRADE_MS if link.number == 1 else 0
        if link.adopted_ms is not None:
            self.adopted += 1
            self._look_outside(link, link.adopted_ms > self.outside_until_ms)
        self.last = AuditHead(link.number, link.mac)

    def _look_outside(self, link: AuditLink, is_late: bool) -> None:
        if is_late:
            detail = (
                f"entry {link.audit_id} was written without a link: by a process of an older version, or by somebody "
                "with access to the database"
            )
            self._tell(Flaw.OUTSIDE, link.number, link.audit_id, detail)

    def compare(self, heads: Iterable[tuple[AuditHead, str | None]]) -> None:
        """Heads in the order of their numbers, each with the MAC that the link of its number has now."""
        for head, mac in heads:
            if mac == head.link:
                self.proven = head.number
                continue
            first = self.proven + 1
            if head.number > self.last.number:
                detail = f"there were {head.number} links, {self.last.number} are left: the newest entries were removed"
                self._tell(Flaw.CUT, self.last.number + 1, None, detail)
            else:
                detail = (
                    f"links {first} to {head.number} are not those that Kafka has a head of: entries were rewritten"
                )
                self._tell(Flaw.REWRITTEN, first, None, detail)
            break

    def miss_heads(self, count: int) -> None:
        """So many records of their topic were removed: whatever they proved may have been cut off."""
        detail = f"the first {count} records of the heads' topic were removed: entries that they proved may be gone"
        self._tell(Flaw.HEADS_REMOVED, self.last.number + 1, None, detail)

    def _tell(self, flaw: Flaw, number: int, audit_id: int | None, detail: str) -> None:
        self.flaws += 1
        if len(self.findings) < SHOWN:
            self.findings.append(ChainFinding(flaw, number, audit_id, detail))
