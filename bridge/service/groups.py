"""Producer groups: settings, endpoints, secrets, health. Every change is audited in its own SQL transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.core.check_rules import GroupSettings, is_group_name
from bridge.core.errors import SecretUnreadable, SqlUnavailable
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.directory import GroupSwitch, ProducerGroup
from bridge.service.contract import Outcome, RefusalCode, Refused, refuse_for_group, refuse_group, refuse_unavailable
from bridge.service.journal import Deadline
from bridge.service.operate import Who
from bridge.service.reads import CurrentReads, refuse_read
from bridge.sql.access import ActEntry
from bridge.sql.directory import SqlDirectory
from bridge.sql.groups import GroupDeletion, GroupHealth, settings_values
from bridge.sql.leases import EndpointLease, EndpointTerm, Registration
from bridge.sql.transactions import count_live

MAX_ENDPOINTS = 100
MAX_LEASED_ENDPOINTS = 1_000
_NOT_READ = "the database cannot say now what became of it"
UrlRule = Callable[[str], str | None]
"""Why a callback URL is refused; None if it may be called."""
Proof = Callable[[ProducerGroup, str], Awaitable[str | None]]
"""Asks an endpoint to prove that it is the group's; why it has not, or None."""


@dataclass(frozen=True, slots=True)
class GroupSaved:
    """What a put made. `secret` is returned once, when the put created the group."""

    group: ProducerGroup
    is_created: bool
    secret: str | None


@dataclass(frozen=True, slots=True)
class EndpointRegistered:
    """An endpoint that is asked from now on. `lease_until_ms` None: a put named it, so it needs no lease."""

    url: str
    lease_until_ms: int | None


class GroupService:
    """What operators and producers may do to producer groups."""

    def __init__(
        self, directory: SqlDirectory, reads: CurrentReads, clock: Clock, queues: int, refuse_url: UrlRule, prove: Proof
    ) -> None:
        self._directory = directory
        self._reads = reads
        self._clock = clock
        self._queues = queues
        self._refuse_url = refuse_url
        self._prove = prove

    async def put(self, name: str, settings: GroupSettings, urls: Sequence[str], who: Who) -> GroupSaved | Refused:
        """Creates the group, or replaces its settings and static endpoints."""
        refused = refuse_for_group(who.rights, Verb.ADMIN, name) or self._check(name, urls)
        if refused is not None:
            return refused
        before = self._directory.get(name)
        refused = await self._refuse_unproven(before or ProducerGroup(name, settings), urls, "/endpoints/{}/url")
        if refused is not None:
            return refused
        act = self._entry(
            who, "producer-group.put", name, describe(before) if before else None, _describe_put(settings, urls)
        )
        try:
            made = await self._directory.put_group(name, settings, urls, act)
        except SqlUnavailable as error:
            return refuse_sql(error)
        saved = self._directory.get(name) or ProducerGroup(name, settings)
        as_put = replace(saved, settings=replace(saved.settings, times=settings.times))
        return GroupSaved(as_put, made.is_created, made.secret)

    async def get(self, name: str, rights: Rights = EVERYTHING) -> GroupHealth | Refused:
        """The group with the results of its rounds and its counts."""
        if (refused := refuse_for_group(rights, Verb.READ, name)) is not None:
            return refused
        try:
            health = await self._directory.read_health(name)
        except SqlUnavailable as error:
            return refuse_sql(error)
        return health or refuse_group(name)

    async def find(self, name: str, rights: Rights) -> ProducerGroup | Refused:
        """The group as its endpoints know it, with its secrets, for somebody who may change it."""
        if (refused := refuse_for_group(rights, Verb.ADMIN, name)) is not None:
            return refused
        try:
            await self._directory.refresh()
        except SqlUnavailable as error:
            return refuse_sql(error)
        return self._directory.get(name) or refuse_group(name)

    async def list(self, limit: int, after: str = "", rights: Rights = EVERYTHING) -> Sequence[GroupHealth] | Refused:
        """Groups in the order of their names, those after `after`."""
        try:
            await self._directory.refresh()
            names = sorted(name for name in self._directory.groups if name > after and rights.may(Verb.READ, name))
            return await self._directory.read_healths(names[: max(limit, 1)])
        except SqlUnavailable as error:
            return refuse_sql(error)

    async def delete(self, name: str, who: Who, wait_ms: int = 2_000) -> Refused | None:
        """Deletes a group for which nothing is to be done any more; waits for the projection to be sure."""
        if (refused := refuse_for_group(who.rights, Verb.ADMIN, name)) is not None:
            return refused
        deadline = Deadline.after(self._clock, wait_ms)
        read = await self._reads.read(range(self._queues), lambda connection: count_live(connection, name), deadline)
        if read.value is None:
            return refuse_read(read.currency)
        before = self._directory.get(name)
        act = self._entry(who, "producer-group.delete", name, describe(before) if before else None, None)
        try:
            deletion = await self._directory.delete_group(name, act)
        except SqlUnavailable as error:
            return refuse_sql(error)
        if deletion is GroupDeletion.IN_USE:
            detail = "the group has pending, parked or blocked transactions"
            return Refused(RefusalCode.PRODUCER_GROUP_IN_USE, detail)
        return refuse_group(name) if deletion is GroupDeletion.UNKNOWN else None

    async def switch(self, name: str, what: GroupSwitch, who: Who, *, is_paused: bool) -> ProducerGroup | Refused:
        """Pauses the group's checks or prepares, or lets them go on; the group as it is then. Repeating it is no error.

        What is under way goes on: a call that has begun is answered, a prepare that was taken stays.
        """
        if (refused := refuse_for_group(who.rights, Verb.OPERATE, name)) is not None:
            return refused
        what_was_done = "producer-group.pause" if is_paused else "producer-group.resume"
        act = self._entry(who, what_was_done, name, None, {"what": what.value})
        try:
            is_changed = await self._directory.switch_group(name, what, act, is_paused=is_paused)
        except SqlUnavailable as error:
            return refuse_sql(error)
        if is_changed is None:
            return refuse_group(name)
        # of one that another process made a moment ago nothing is known here if the database went away since
        return self._directory.get(name) or replace(refuse_unavailable(_NOT_READ), outcome=Outcome.UNKNOWN)

    async def switch_prepares(self, who: Who, *, is_paused: bool) -> Refused | None:
        """Takes nothing new of any group, or takes it again; all that has begun goes on. Repeating it is no error."""
        act = self._entry(who, "bridge.pause" if is_paused else "bridge.resume", "bridge", None, {"what": "prepares"})
        try:
            await self._directory.switch_prepares(act, is_paused=is_paused)
        except SqlUnavailable as error:
            return refuse_sql(error)
        return None

    async def rotate_secret(self, name: str, who: Who) -> str | Refused:
        """The new secret, returned once; the old one signs for another 24 h."""
        if (refused := refuse_for_group(who.rights, Verb.ADMIN, name)) is not None:
            return refused
        try:
            secret = await self._directory.rotate_secret(
                name, self._entry(who, "producer-group.rotate-secret", name, None, None)
            )
        except SqlUnavailable as error:
            return refuse_sql(error)
        return secret or refuse_group(name)

    async def register_endpoint(self, name: str, url: str, lease_ms: int, who: Who) -> EndpointRegistered | Refused:
        """A live instance can be asked at this URL for so long; said again, the lease begins anew."""
        refused = refuse_for_group(who.rights, Verb.CHECK, name) or await self._refuse_lease(name, url)
        if refused is not None:
            return refused
        wanted = EndpointLease(name, url, EndpointTerm(self._clock.now_ms() + lease_ms, lease_ms))
        act = self._entry(who, "producer-group.register-endpoint", name, None, {"url": url, "lease_ms": lease_ms})
        try:
            made = await self._directory.register_endpoint(wanted, MAX_LEASED_ENDPOINTS, act)
        except SqlUnavailable as error:
            return refuse_sql(error)
        if made is Registration.UNKNOWN_GROUP:
            return refuse_group(name)
        if made is Registration.TOO_MANY:
            return Refused(RefusalCode.TOO_MANY_ENDPOINTS, f"at most {MAX_LEASED_ENDPOINTS} endpoints with a lease")
        return EndpointRegistered(url, None if made is Registration.STATIC else wanted.term.until_ms)

    async def remove_endpoint(self, name: str, url: str, who: Who) -> bool | Refused:
        """Ends the lease of an endpoint; False if it has none, as after its end. What a put named stays."""
        if (refused := refuse_for_group(who.rights, Verb.CHECK, name)) is not None:
            return refused
        act = self._entry(who, "producer-group.remove-endpoint", name, {"url": url}, None)
        try:
            if await self._directory.remove_endpoint(name, url, act):
                return True
            await self._directory.refresh()
        except SqlUnavailable as error:
            return refuse_sql(error)
        return refuse_group(name) if self._directory.get(name) is None else False

    def _check(self, name: str, urls: Sequence[str]) -> Refused | None:
        if not is_group_name(name):
            detail = "a group name has 1 to 120 of A-Z a-z 0-9 . _ -"
            return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("producer_group", detail),))
        if len(urls) > MAX_ENDPOINTS:
            detail = f"at most {MAX_ENDPOINTS} endpoints"
            return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("/endpoints", detail),))
        reasons = [(f"/endpoints/{n}/url", reason) for n, url in enumerate(urls) if (reason := self._refuse_url(url))]
        if reasons:
            return Refused(RefusalCode.CALLBACK_URL_FORBIDDEN, reasons[0][1], errors=reasons)
        return None

    async def _refuse_lease(self, name: str, url: str) -> Refused | None:
        reason, group = self._refuse_url(url), self._directory.get(name)
        if reason is not None:
            return Refused(RefusalCode.CALLBACK_URL_FORBIDDEN, reason, errors=(("/url", reason),))
        return None if group is None else await self._refuse_unproven(group, [url], "/url")

    async def _refuse_unproven(self, group: ProducerGroup, urls: Sequence[str], place: str) -> Refused | None:
        """The refusal if an endpoint that the group does not have yet has not proved that it is the group's."""
        known = {endpoint.url for endpoint in group.endpoints}
        new = [(n, url) for n, url in enumerate(urls) if url not in known]
        flaws = await asyncio.gather(*[self._prove(group, url) for _, url in new])
        errors = [(place.format(n), flaw) for (n, _), flaw in zip(new, flaws, strict=True) if flaw is not None]
        return Refused(RefusalCode.CALLBACK_UNVERIFIED, errors[0][1], errors=errors) if errors else None

    def _entry(
        self, who: Who, what: str, name: str, before: Mapping[str, object] | None, after: Mapping[str, object] | None
    ) -> ActEntry:
        return ActEntry(self._clock.now_ms(), who.actor, what, name, who.reason or None, before, after)


def describe(group: ProducerGroup) -> Mapping[str, object]:
    """What an audit entry says of a group; never its secrets."""
    return _describe_put(group.settings, [endpoint.url for endpoint in group.endpoints if not endpoint.is_leased])


def _describe_put(settings: GroupSettings, urls: Sequence[str]) -> Mapping[str, object]:
    values = settings_values(settings)
    del values["accepts_prepares"]
    return {"endpoints": list(urls), **values, "accept_prepares": settings.accepts_prepares}


def refuse_sql(error: SqlUnavailable) -> Refused:
    """The refusal of a read or write the database could not do; a broken COMMIT may have been done."""
    outcome = Outcome.UNKNOWN if error.is_outcome_unknown else Outcome.NOT_APPLIED
    detail = str(error) if isinstance(error, SecretUnreadable) else "the database cannot do it now"
    return replace(refuse_unavailable(detail), outcome=outcome)
