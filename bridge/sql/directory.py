"""The directory of producer groups over SQL: read from memory, refreshed beside, written through."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_bytes
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.check_rules import CheckMode, CheckTimes, GroupSettings
from bridge.core.errors import SqlUnavailable
from bridge.directory import DEFAULT_SETTINGS, GroupSwitch, ProducerGroup, UnansweredRound
from bridge.fault_points import FaultPoint, reach
from bridge.sql import groups
from bridge.sql.access import ActEntry, record_act
from bridge.sql.bulk import move_version
from bridge.sql.engine import Database
from bridge.sql.groups import GroupDeletion, GroupHealth, GroupPut, RandomBytes, Snapshot, read_health, record_rounds
from bridge.sql.leases import (
    EndpointLease,
    EndpointTerm,
    LeaseTerms,
    Place,
    Registration,
    read_terms,
    register_endpoint,
    remove_ended,
    remove_endpoint,
)
from bridge.sql.rows import read_list
from bridge.sql.tables import directory_version
from bridge.turns import Recent

T = TypeVar("T")
_LOG = structlog.get_logger()
_USUAL_MS = DEFAULT_SETTINGS.times.transaction_timeout_ms


class SqlDirectory:
    """Port ProducerDirectory. Changes made by other processes are seen after at most `refresh_ms`.

    Writes take the audit entry that is to be kept in the same SQL transaction. All of them raise
    SqlUnavailable; reads from memory never do. `random_bytes`: what secrets are made of. `check_after_ms`: the
    transaction timeout here of groups that have the usual one.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        refresh_ms: int = 1_000,
        random_bytes: RandomBytes = token_bytes,
        check_after_ms: int = _USUAL_MS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._random_bytes = random_bytes
        self._check_after_ms = check_after_ms
        self._usual = _hasten(DEFAULT_SETTINGS, check_after_ms)
        self._snapshot = Snapshot()
        self._leases = LeaseTerms()
        self._ended: Mapping[Place, EndpointTerm] = {}
        self.groups: Mapping[str, ProducerGroup] = {}  # all as known now
        self._refreshed_ms: int | None = None
        self._looks = self._taken_look = 0  # how many have begun, and the number of that whose snapshot this is
        self._making = Recent[ProducerGroup](0, clock.monotonic_ms)

    @property
    def accepts_prepares(self) -> bool:
        """Whether anything new may begin here; a group has a switch of its own beside it."""
        return self._snapshot.accepts_prepares

    @property
    def damaged(self) -> Sequence[str]:
        """What of them cannot be decrypted, in words."""
        return self._snapshot.damaged

    @property
    def lacks_key(self) -> bool:
        """Whether something is encrypted with a key that the settings of this process do not have."""
        return bool(self._snapshot.keyless)

    def age_ms(self) -> int | None:
        """How long ago the database was asked last; None: never."""
        return None if self._refreshed_ms is None else self._clock.monotonic_ms() - self._refreshed_ms

    def get(self, group: str) -> ProducerGroup | None:
        return self.groups.get(group)

    def settings_of(self, group: str) -> GroupSettings:
        known = self.groups.get(group)
        return known.settings if known else self._usual

    def times_of(self, group: str) -> CheckTimes:
        """When transactions of the group are checked."""
        known = self.groups.get(group)
        return known.settings.times if known else self._usual.times

    def find_timeout_s(self, group: str) -> int | None:
        """The group's transaction timeout, if another process may still know another one: None where its settings have
        always been the defaults."""
        known = self.groups.get(group)
        if known is None or (known.updated_ms == known.created_ms and known.settings == DEFAULT_SETTINGS):
            return None
        return -(-known.settings.times.transaction_timeout_ms // 1000)

    async def disable_endpoint(self, group: str, url: str, reason: str) -> None:
        await self._write(partial(groups.disable_endpoint, name=group, url=url, reason=reason), None)

    async def record_rounds(self, rounds: Sequence[UnansweredRound]) -> None:
        await self._database.run(partial(record_rounds, rounds=rounds))

    async def ensure_group(self, group: str, settings: GroupSettings = DEFAULT_SETTINGS) -> ProducerGroup:
        """The group, made with these settings, without endpoint and secret, if nobody has created it.

        All who ask at once, as many first prepares of a group do, wait for one SQL transaction.
        """
        known = self.get(group)
        if known is not None:
            return known
        return await self._making.get(lambda: self._make_group(group, settings), group)

    async def _make_group(self, group: str, settings: GroupSettings) -> ProducerGroup:
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> tuple[ProducerGroup, bool]:
            is_new = groups.ensure_group(conn, group, now_ms, settings)
            made = groups.read_group(conn, group, now_ms, [])
            assert made is not None  # in one SQL transaction
            return made, is_new

        made, is_new = await self._database.run(work)
        if is_new and settings.calls.mode is CheckMode.PUSH:  # perhaps a typing error
            _LOG.warning("group_made_by_a_prepare", group=group, endpoint="none: `outbox-bridge group put` names one")
        # without the version, so that the next refresh still reads everything
        self._snapshot = replace(self._snapshot, groups={**self._snapshot.groups, group: made})
        self.groups = self._view()
        return self.groups[group]

    async def put_group(
        self, group: str, settings: GroupSettings, urls: Collection[str], act: ActEntry | None = None
    ) -> GroupPut:
        """Creates, or replaces settings and static endpoints. The secret is returned once, on creation."""
        now_ms, random_bytes = self._clock.now_ms(), self._random_bytes

        def work(conn: Connection) -> GroupPut:
            return groups.put_group(conn, group, settings, urls, now_ms, random_bytes)

        return await self._write(work, act)

    async def delete_group(self, group: str, act: ActEntry | None = None) -> GroupDeletion:
        """Deletes a group for which nothing is to be done any more."""

        def work(conn: Connection) -> GroupDeletion:
            deletion = groups.delete_group(conn, group)
            if deletion is GroupDeletion.DELETED and act is not None:
                record_act(conn, act)
            return deletion

        return await self._write(work, None)

    async def switch_group(self, group: str, what: GroupSwitch, act: ActEntry, *, is_paused: bool) -> bool | None:
        """Pauses the group's checks or prepares, or lets them go on; whether that changed anything. None: no such
        group."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> bool | None:
            is_changed = groups.switch_group(conn, group, what, now_ms, is_paused=is_paused)
            if is_changed is not None:
                record_act(conn, act)
            return is_changed

        return await self._write(work, None)

    async def switch_prepares(self, act: ActEntry, *, is_paused: bool) -> None:
        """Takes nothing new of any group, or takes it again."""
        await self._write(partial(groups.switch_prepares, is_paused=is_paused), act)

    async def rotate_secret(self, group: str, act: ActEntry | None = None) -> str | None:
        """The new secret, returned once; None: no such group. The old one signs for another 24 h."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> str | None:
            secret = groups.rotate_secret(conn, group, now_ms, self._random_bytes)
            if secret is not None and act is not None:
                record_act(conn, act)
            return secret

        return await self._write(work, None)

    async def register_endpoint(self, wanted: EndpointLease, most: int, act: ActEntry) -> Registration:
        """Takes or renews a lease of an endpoint; the act is kept when the endpoint is new to the group."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> Registration:
            made, is_change = register_endpoint(conn, wanted, most)
            if is_change:
                move_version(conn, directory_version)
            if made is Registration.NEW:
                groups.forget_results(conn, wanted.group, now_ms)
                record_act(conn, act)
            return made

        return await self._commit(work)

    async def remove_endpoint(self, group: str, url: str, act: ActEntry) -> bool:
        """Ends the lease of an endpoint; False if there is none."""

        def work(conn: Connection) -> bool:
            is_removed = remove_endpoint(conn, group, url)
            if is_removed:
                move_version(conn, directory_version)
                record_act(conn, act)
            return is_removed

        return await self._commit(work)

    async def read_health(self, group: str) -> GroupHealth | None:
        """The group as the database has it, with results of its rounds and its counts."""
        found = await self.read_healths([group])
        return found[0] if found else None

    async def read_healths(self, names: Collection[str]) -> list[GroupHealth]:
        """The same of all that there are, as they stand at one moment."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> list[GroupHealth]:
            found = [read_health(conn, name, now_ms) for name in names]
            return [health for health in found if health is not None]

        return await read_list(self._database, work)

    async def refresh(self) -> None:
        """Reads what has changed. Raises SqlUnavailable."""
        known, now_ms = self._snapshot, self._clock.now_ms()

        def read(conn: Connection) -> tuple[Snapshot, Mapping[Place, EndpointTerm]]:
            snapshot = groups.read_snapshot(conn, known, now_ms)
            return snapshot, read_terms(conn) if snapshot.has_leases else {}

        self._looks += 1
        look = self._looks
        snapshot, terms = await self._database.read(read)
        if look < self._taken_look:  # what a later one has found is at least as new
            return
        self._taken_look, self._refreshed_ms = look, self._clock.monotonic_ms()
        ended = self._leases.note(terms, self._refreshed_ms)
        for reason in snapshot.damaged if snapshot is not self._snapshot else ():
            _LOG.error("secret_damaged", reason=reason)
        if snapshot is not self._snapshot or ended != self._ended:
            self._snapshot, self._ended = _keep_readable(snapshot, self._snapshot), ended
            self.groups = self._view()

    def _view(self) -> Mapping[str, ProducerGroup]:
        """The groups as this process acts on them."""
        known = _without(self._snapshot.groups, self._ended)
        if self._check_after_ms == _USUAL_MS:
            return known
        return {
            name: replace(group, settings=_hasten(group.settings, self._check_after_ms))
            for name, group in known.items()
        }

    async def run_once(self) -> int:
        """Reads what has changed and removes leases that are over; how many of them there were."""
        await self.refresh()
        if self._ended:
            await self._database.run(partial(_forget, ended=self._ended))
        return len(self._ended)

    async def run_forever(self) -> None:
        """Refreshes until it is cancelled; while the database is away the last snapshot stays."""
        while True:
            try:
                await self.run_once()
            except SqlUnavailable as error:
                _LOG.warning("directory_not_refreshed", reason=str(error))
            await self._clock.sleep_ms(self._refresh_ms)

    async def _commit(self, work: Callable[[Connection], T]) -> T:
        """What was written is seen with the next refresh: instances may come by the hundred."""

        def whole(conn: Connection) -> T:
            result = work(conn)
            reach(FaultPoint.DIRECTORY_WRITTEN)
            return result

        result = await self._database.run(whole)
        reach(FaultPoint.DIRECTORY_COMMITTED)
        return result

    async def _write(self, work: Callable[[Connection], T], act: ActEntry | None) -> T:
        """What was written is seen here at once."""

        def audited(conn: Connection) -> T:
            result = work(conn)
            if act is not None:
                record_act(conn, act)
            return result

        result = await self._commit(audited)
        try:
            await self.refresh()
        except SqlUnavailable as error:  # what was written stands, and is seen a little later
            _LOG.warning("directory_not_refreshed", reason=str(error))
        return result


def _hasten(settings: GroupSettings, check_after_ms: int) -> GroupSettings:
    if settings.times.transaction_timeout_ms != _USUAL_MS:
        return settings
    return replace(settings, times=replace(settings.times, transaction_timeout_ms=check_after_ms))


def _keep_readable(snapshot: Snapshot, known: Snapshot) -> Snapshot:
    """The groups as they are now, with endpoints and secrets as they were known of those that need a key which this
    process does not have: it goes on asking, and notices what is paused."""
    kept = {
        name: replace(snapshot.groups[name], endpoints=known.groups[name].endpoints, secrets=known.groups[name].secrets)
        for name in snapshot.keyless.keys() & snapshot.groups.keys() & known.groups.keys()
    }
    return replace(snapshot, groups={**snapshot.groups, **kept}) if kept else snapshot


def _without(known: Mapping[str, ProducerGroup], ended: Mapping[Place, EndpointTerm]) -> Mapping[str, ProducerGroup]:
    """The groups without endpoints whose lease is over."""
    changed = dict(known)
    for name in {group for group, _ in ended} & known.keys():
        group = known[name]
        living = tuple(e for e in group.endpoints if not (e.is_leased and (name, e.url) in ended))
        changed[name] = replace(group, endpoints=living)
    return changed if ended else known


def _forget(conn: Connection, ended: Mapping[Place, EndpointTerm]) -> None:
    """Every process that sees a lease end tries to; the first one lets the others know."""
    if remove_ended(conn, ended):
        move_version(conn, directory_version)
