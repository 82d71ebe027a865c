"""What is refused at the door: before anything is written, and before the caller commits anything."""

from collections.abc import Collection, Iterable, Sequence

import structlog

from bridge.core.check_rules import is_group_name
from bridge.core.message import Message
from bridge.core.properties import NUL, RESERVED_HEADERS, count_body_bytes, is_property_text
from bridge.fault_points import FaultPoint, reach
from bridge.service.answers import refuse_unavailable
from bridge.service.contract import Limits, PrepareCall, RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.service.ports import Door
from bridge.sql.engine import SqlUnavailable

_LOG = structlog.get_logger()


class Admission:
    """Checks prepares. What learns does the I/O for many calls at once, `check` none."""

    def __init__(self, door: Door, limits: Limits) -> None:
        self._door = door
        self._limits = limits

    async def learn_topics(self, calls: Sequence[PrepareCall], deadline: Deadline) -> None:
        """Looks up topics that are not known. Groups that are not known count as one: anybody can invent them."""
        door = self._door
        wanted = dict.fromkeys((call.group, message.topic) for call in calls for message in call.messages)
        groups = {group: group if door.directory.get(group) else "" for group, _ in wanted}
        await door.destinations.learn([(groups[group], topic) for group, topic in wanted], deadline)

    def check(self, call: PrepareCall) -> Refused | None:
        """Why the call is refused; None if nothing speaks against it."""
        limits, messages = self._limits, call.messages
        if not 1 <= len(messages) <= limits.max_messages:
            return _invalid("/messages", f"1 to {limits.max_messages} messages")
        if call.ordering_key is not None or call.idempotency_key is not None:
            refused = self._check_keys(call)
            if refused is not None:
                return refused
        for index, message in enumerate(messages):
            if message.headers and (header := _find_bad_header(message)) is not None:
                return _invalid(f"/messages/{index}/headers", f"header name {header!r} cannot be used")
            if count_body_bytes(message) > limits.max_message_bytes:
                return _too_large(index, limits.max_message_bytes)
        return self._door.destinations.check(messages)

    def _check_keys(self, call: PrepareCall) -> Refused | None:
        for name, text in (("ordering_key", call.ordering_key), ("idempotency_key", call.idempotency_key)):
            if text is not None and not is_text(text, self._limits.max_text_chars):
                return _invalid(f"/{name}", "too long, or holds a byte that is not allowed")
        return None

    async def learn_groups(self, groups: Iterable[str], deadline: Deadline) -> dict[str, Refused]:
        """Looks up or creates groups that are not known; those that cannot be used, with the reason."""
        directory = self._door.directory
        missing = [group for group in groups if directory.get(group) is None]
        refused = {g: _invalid("/producer_group", "not a legal group name") for g in missing if not is_group_name(g)}
        legal = [group for group in missing if group not in refused]
        learn = self._create if self._door.auto_create_groups else self._find
        return refused | await learn(legal, deadline) if legal else refused

    async def _find(self, groups: Collection[str], deadline: Deadline) -> dict[str, Refused]:
        """Another process may have made them a moment ago."""
        directory = self._door.directory
        try:
            if deadline.left_ms():
                await directory.refresh()
                return {group: refuse_group(group) for group in groups if directory.get(group) is None}
        except SqlUnavailable as error:
            _LOG.warning("group_not_looked_up", reason=str(error))
        return dict.fromkeys(groups, refuse_unavailable("the producer group could not be looked up"))

    async def _create(self, groups: Collection[str], deadline: Deadline) -> dict[str, Refused]:
        refused: dict[str, Refused] = {}
        for group in groups:
            try:
                if deadline.left_ms() and not refused:
                    await self._door.directory.ensure_group(group)
                    reach(FaultPoint.GROUP_CREATED)
                    continue
            except SqlUnavailable as error:
                _LOG.warning("group_not_looked_up", reason=str(error))
            refused[group] = refuse_unavailable("the producer group could not be looked up")
        return refused


def is_text(text: str, max_chars: int) -> bool:
    """Whether a text of this length can travel in a record's properties."""
    return len(text) <= max_chars and is_property_text(text)


def refuse_group(group: str) -> Refused:
    """Nobody created the group."""
    return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, f"producer group {group} does not exist")


def _find_bad_header(message: Message) -> str | None:
    for name, _ in message.headers:
        if name in RESERVED_HEADERS or NUL in name or not (name.isascii() or is_property_text(name)):
            return name
    return None


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(RefusalCode.INVALID_REQUEST, detail, errors=((pointer, detail),))


def _too_large(index: int, max_bytes: int) -> Refused:
    detail = f"a message may have {max_bytes} bytes"
    return Refused(RefusalCode.MESSAGE_TOO_LARGE, detail, errors=((f"/messages/{index}/value", detail),))
