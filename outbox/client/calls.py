"""Calls as HTTP requests. Pure.

What many callers ask at once travels in one request: a call is an item of a list, or stands alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import quote as quote_path
from urllib.parse import urlencode

from outbox.client.errors import InvalidMessage, Misuse, OutboxConfigError
from outbox.client.listener import Resolution, tidy_remark
from outbox.client.message import SEPARATORS, Message, encode_message, quote

JSON = "application/json"

_GROUP = re.compile(r"[A-Za-z0-9._-]{1,120}")
_IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,200}")
_TRANSACTION_ID = re.compile(r"[0-9A-Za-z]{1,64}")
_LIMITS = {"check_immunity_seconds": (0, 604_800), "max_checks": (1, 1_000), "max_lifetime_seconds": (1, 604_800)}


class PrepareOptions(TypedDict, total=False):
    """What may be said about a transaction besides its messages.

    `ordering_key`: transactions of the group with one key are published in the order of their commits, over all
    topics; without one, those with one key of their first message, within its topic. `idempotency_key`: the same
    group, key and messages are one transaction, however often they are sent. The others replace the group's check
    settings.
    """

    ordering_key: str | None
    idempotency_key: str | None
    check_immunity_seconds: int | None
    max_checks: int | None
    max_lifetime_seconds: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of call that can travel with others. `alone`: where a single one goes; None: as a list of one.

    `prefers_async`: the answer says that it is stored, and not what became of it. Source: RFC 7240 section 4.1.
    """

    name: str
    alone: str | None
    together: str
    member: str
    prefers_async: bool = False


PREPARE = Kind("prepare", "/v1/transactions", "/v1/transactions/batch", "transactions")
PUBLISH = Kind("publish", "/v1/messages", "/v1/messages/batch", "transactions")
END = Kind("end", None, "/v1/resolutions", "resolutions")
STORED_END = Kind("stored end", None, "/v1/resolutions", "resolutions", prefers_async=True)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a caller. `is_repeatable`: sending it twice is the same as sending it once.

    `transaction_id`: the one an answer must speak of, where it is known before. `is_query`: a refusal says what is
    recorded, whatever an earlier try has done. `is_fresh`: its idempotency key was made for it.
    """

    kind: Kind
    item: bytes
    is_repeatable: bool = True
    transaction_id: str | None = None
    is_query: bool = False
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What goes over the wire; one made for a caller always goes alone, and repeating it does no harm.

    `transaction_id`: the one an answer must speak of. `first_try_ms`: Kafka's time, as far as it is known, of a request
    that is no repeat. `waits_s`: how long the bridge is asked to wait before it answers.
    """

    method: str
    target: str
    body: bytes | None = None
    transaction_id: str | None = None
    first_try_ms: int | None = None
    prefers_async: bool = False
    waits_s: float = 0.0


def prepare_call(
    group: str,
    messages: Sequence[Message],
    options: PrepareOptions,
    *,
    is_published: bool = False,
    is_fresh: bool = False,
) -> Call:
    """A prepare; or a publish, which needs no end. Raises InvalidMessage."""
    check_options(options)
    members = [f'"producer_group":"{group}"', *_encode_options(options)]
    listed = ",".join([encode_message(message) for message in messages])
    item = "{" + ",".join([*members, f'"messages":[{listed}]']) + "}"
    is_repeatable = options.get("idempotency_key") is not None
    return Call(PUBLISH if is_published else PREPARE, item.encode(), is_repeatable, is_fresh=is_fresh)


def end_call(
    transaction_id: str,
    resolution: Resolution,
    group: str | None,
    nonce: str | None = None,
    kind: Kind = END,
    remark: str | None = None,
) -> Call:
    """An end; with `nonce`, the answer to that check. `remark`: why. Raises InvalidMessage."""
    check_transaction_id(transaction_id)
    members = [f'"transaction_id":{quote(transaction_id)}', f'"resolution":"{resolution.name}"']
    if group is not None:
        members.append(f'"producer_group":{quote(group)}')
    if nonce is not None:
        members.append(f'"nonce":{quote(nonce)}')
    if remark:
        members.append(f'"remark":{quote(tidy_remark(remark))}')
    item = "{" + ",".join(members) + "}"
    return Call(kind, item.encode(), transaction_id=transaction_id, is_query=True)


def get_call(transaction_id: str, *, with_messages: bool = False) -> Request:
    """A look at one transaction. Raises InvalidMessage."""
    check_transaction_id(transaction_id)
    query = "?include=messages" if with_messages else ""
    return Request("GET", f"/v1/transactions/{transaction_id}{query}", transaction_id=transaction_id)


def register_call(group: str, url: str, lease_seconds: int) -> Request:
    """Registers an endpoint for a lease, or renews it."""
    body = f'{{"url":{quote(url)},"lease_seconds":{lease_seconds}}}'
    return Request("POST", _endpoints(group), body.encode())


def leave_call(group: str, url: str) -> Request:
    """Ends the lease of an endpoint."""
    return Request("DELETE", f"{_endpoints(group)}?{urlencode({'url': url})}")


def claim_call(group: str, limit: int, wait_s: float, lease_s: float) -> Request:
    """Leases due checks of a group that fetches them. One whose answer is lost is free again when its lease is over."""
    body = f'{{"limit":{limit},"wait_seconds":{wait_s:.3f},"lease_seconds":{lease_s:.3f}}}'
    path = f"/v1/producer-groups/{quote_path(group, safe='')}/checks/claim"
    return Request("POST", path, body.encode(), waits_s=wait_s)


def join(kind: Kind, items: Sequence[bytes], wait_s: float, first_try_ms: int | None = None) -> Request:
    """One request for one call or many. `wait_s`: how long the bridge may wait for each to be settled."""
    query = f"?wait_seconds={wait_s:.3f}"
    if len(items) == 1 and kind.alone is not None:
        return Request("POST", kind.alone + query, items[0], first_try_ms=first_try_ms)
    body = b'{"%b":[%b]}' % (kind.member.encode(), b",".join(items))
    return Request("POST", kind.together + query, body, None, first_try_ms, kind.prefers_async)


def is_batch(kind: Kind, count: int) -> bool:
    """Whether the answer to so many joined calls is a list."""
    return count > 1 or kind.alone is None


def check_group(name: str) -> str:
    """The name itself. Raises OutboxConfigError unless it is legal."""
    if not isinstance(name, str) or _GROUP.fullmatch(name) is None:
        raise OutboxConfigError("a producer group's name has 1..120 characters of A-Z a-z 0-9 . _ -")
    return name


def check_transaction_id(transaction_id: str) -> None:
    """Raises InvalidMessage for what cannot be an id."""
    if not isinstance(transaction_id, str) or _TRANSACTION_ID.fullmatch(transaction_id) is None:
        raise InvalidMessage("not a transaction id as the bridge gave it")


def check_ordering_key(text: str) -> str:
    """The key itself. Raises InvalidMessage for what the bridge would refuse."""
    is_text = isinstance(text, str) and 1 <= len(text) <= 1_000
    if not is_text or any(byte in text for byte in SEPARATORS):
        raise InvalidMessage("an ordering key has 1..1,000 characters, without 0x00, 0x01 and 0x02")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("an ordering key holds a lone surrogate") from None
    return text


def check_options(options: Mapping[str, object]) -> None:
    """Raises Misuse for names that are none: an option with a typing error must not be left out silently."""
    unknown = sorted(options.keys() - PrepareOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(PrepareOptions.__annotations__)
        raise Misuse(f"no option {unknown[0]}: there are {known}")


def _endpoints(group: str) -> str:
    return f"/v1/producer-groups/{quote_path(group, safe='')}/endpoints"


def _encode_options(options: PrepareOptions) -> list[str]:
    ordering_key, idempotency_key = options.get("ordering_key"), options.get("idempotency_key")
    members = []
    if ordering_key is not None:
        members.append(f'"ordering_key":{quote(check_ordering_key(ordering_key))}')
    if idempotency_key is not None:
        if not isinstance(idempotency_key, str) or _IDEMPOTENCY_KEY.fullmatch(idempotency_key) is None:
            raise InvalidMessage("an idempotency key has 1..200 printable ASCII characters")
        members.append(f'"idempotency_key":{quote(idempotency_key)}')
    for name, (least, most) in _LIMITS.items():
        number = options.get(name)
        if number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise InvalidMessage(f"{name} is an integer from {least} to {most}")
        members.append(f'"{name}":{int(number)}')
    return members
