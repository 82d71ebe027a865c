"""Who calls: principals, their grants, keys, sessions of people, signatures of RocketMQ's clients."""

import asyncio
import math
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from secrets import token_bytes
from typing import Any, TypeVar

import structlog

from bridge.clock import Clock
from bridge.core.errors import SqlUnavailable
from bridge.core.grants import EVERYTHING, Grant, Rights
from bridge.core.keyring import Keyring, hash_key, read_key_id
from bridge.service.contract import RefusalCode, Refused
from bridge.service.groups import refuse_sql
from bridge.service.issuers import Fetch, IssuerConfig, Issuers
from bridge.service.operate import Who
from bridge.sql import access
from bridge.sql.access import AccessSnapshot, ActEntry, KeyRefusal, MadeKey, Principal, StoredKey, record_act
from bridge.sql.engine import Database

# --- who calls: principals, their grants and their keys. Every change is audited in its own SQL transaction ---

T = TypeVar("T")
_LOG = structlog.get_logger()
_FIRST_ADMIN = "admin"
_MOST_CALLERS = 10_000
_NOTE_USES_MS = 60_000
_TOKEN, _CERTIFICATE, _DOTS = "jwt", "cert", 2
_NO_KEYS = frozenset({_TOKEN, _CERTIFICATE})
_NOTHING = Rights(())


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call. `key_id`: the public part of the key that proves it; `jwt` if a token does,
    `cert` if a certificate; None: anybody may be meant by the name."""

    name: str
    rights: Rights
    key_id: str | None = None


ANYBODY = Caller("anonymous", EVERYTHING)


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """`is_open`: calls without a proof are let in, and may do everything. `admin_key`: one that no table holds.

    `issuers`: whose tokens are believed; `fetch`: how their keys are read.
    """

    is_open: bool = True
    admin_key: str | None = field(default=None, repr=False)
    refresh_ms: int = 1_000
    issuers: tuple[IssuerConfig, ...] = ()
    fetch: Fetch | None = None


class AccessService:
    """Knows everybody from memory, refreshed beside; while the database is away those stay known who were.

    `generation` moves when anybody's rights may have changed: what was concluded from a key before is forgotten then.
    """

    def __init__(
        self, database: Database, clock: Clock, config: AccessConfig, random_bytes: Callable[[int], bytes] = token_bytes
    ) -> None:
        self.config = config
        self.generation = 0
        self._database = database
        self._clock = clock
        self._random_bytes = random_bytes
        self._snapshot = AccessSnapshot()
        self._looks = self._taken_look = 0  # how many have begun, and the last one that was not too late
        self._admin = {} if config.admin_key is None else _make_static(config.admin_key)
        self.issuers = None if config.fetch is None else Issuers(config.issuers, config.fetch, clock)
        self._callers: dict[str, Caller] = {}
        self._over: set[str] = set()  # keys that had expired at the last look
        self._until_ms: float = math.inf  # when the first of the tokens among them is to be looked at again
        self._used: dict[str, int] = {}
        self._noted_ms = clock.monotonic_ms()

    def identify(self, proof: str) -> Caller | None:
        """Who has this key or token; None: nobody now. Raises BadToken."""
        caller = self._callers.get(proof)
        if caller is None:
            is_token = self.issuers is not None and proof.count(".") == _DOTS
            caller = self._read_token(proof) if is_token else self._compare(proof)
            if caller is not None:
                if len(self._callers) >= _MOST_CALLERS:
                    self._callers.clear()
                self._callers[proof] = caller
        return caller

    def find_certified(self, principal: str) -> Caller:
        """Who has shown a certificate that names this principal. Without grants he may do nothing."""
        return Caller(principal, self._snapshot.rights.get(principal, _NOTHING), _CERTIFICATE)

    def find_key(self, key_id: str) -> tuple[Caller, str] | None:
        """Who has the key with this id now, and what is stored of it. Proves nothing: for what was proved before."""
        now_ms = self._clock.now_ms()
        if (key := self._admin.get(key_id)) is not None:
            return Caller(key.principal, EVERYTHING, key_id), key.secret_hash
        key = self._snapshot.keys.get(key_id)
        if key is None or (key.expires_ms is not None and key.expires_ms <= now_ms):
            return None
        return Caller(key.principal, self._snapshot.rights[key.principal], key_id), key.secret_hash

    def rights_of(self, actor: str) -> Rights:
        """What somebody may do now who is called so in the audit, by name, key and address: for what goes on without
        them. A key may have been exchanged meanwhile."""
        name, slash, rest = actor.partition("/")
        if not slash:  # nothing was proved
            return EVERYTHING if self.config.is_open else _NOTHING
        is_admin = rest.partition("@")[0] in self._admin
        return EVERYTHING if is_admin else self._snapshot.rights.get(name, _NOTHING)

    def note_use(self, caller: Caller) -> None:
        """A call of this caller was let in."""
        if caller.key_id is not None and caller.key_id not in _NO_KEYS:
            self._used[caller.key_id] = self._clock.now_ms()

    def _compare(self, key: str) -> Caller | None:
        now_ms = self._clock.now_ms()
        if (found := AccessSnapshot(0, self._admin).find(key, now_ms)) is not None:
            return Caller(found[0], EVERYTHING, found[1])
        found = self._snapshot.find(key, now_ms)
        return None if found is None else Caller(found[0], self._snapshot.rights[found[0]], found[1])

    def _read_token(self, token: str) -> Caller:
        """A principal that nobody has granted anything may do nothing."""
        assert self.issuers is not None
        holder = self.issuers.read(token)
        self._until_ms = min(self._until_ms, holder.until_ms)
        return Caller(holder.principal, self._snapshot.rights.get(holder.principal, _NOTHING), _TOKEN)

    async def refresh(self) -> None:
        """Forgets who is over, and reads what has changed. Raises SqlUnavailable."""
        self._forget_over()
        self._looks += 1
        look, known = self._looks, self._snapshot
        snapshot = await self._database.read(partial(access.read_access, known=known))
        if look < self._taken_look:  # what a later one has found is at least as new
            return
        self._taken_look = look
        if snapshot is not known:
            self._take(snapshot)

    def _forget_over(self) -> None:
        now_ms = self._clock.now_ms()
        if self._find_over(self._snapshot, now_ms) != self._over or self._until_ms <= now_ms:
            self._take(self._snapshot)

    def _take(self, snapshot: AccessSnapshot) -> None:
        self._snapshot = snapshot
        self._over = self._find_over(snapshot, self._clock.now_ms())
        self._callers.clear()
        self._until_ms = math.inf
        self.generation += 1

    @staticmethod
    def _find_over(snapshot: AccessSnapshot, now_ms: int) -> set[str]:
        """Keys that have expired. They stay known: a clock that is ahead may be set back."""
        return {i for i, key in snapshot.keys.items() if key.expires_ms is not None and key.expires_ms <= now_ms}

    async def run_forever(self) -> None:
        """Until cancelled. Who is over is forgotten in time, however long the database takes to answer."""
        await asyncio.gather(self._forget_forever(), self._read_forever())

    async def _forget_forever(self) -> None:
        while True:
            await self._clock.sleep_ms(self.config.refresh_ms)
            self._forget_over()

    async def _read_forever(self) -> None:
        while True:
            try:
                await self.refresh()
                await self.keep_uses()
            except SqlUnavailable as error:
                _LOG.warning("access_not_refreshed", reason=str(error))
            await self._clock.sleep_ms(self.config.refresh_ms)

    async def keep_uses(self) -> None:
        """Writes down when keys were last used, once a minute. Raises SqlUnavailable."""
        now_ms = self._clock.monotonic_ms()
        if self._used and now_ms - self._noted_ms >= _NOTE_USES_MS:
            used, self._used, self._noted_ms = self._used, {}, now_ms
            try:
                await self._database.run(partial(access.note_uses, used=used))
            except SqlUnavailable:
                self._used = used | self._used
                raise

    async def list(self) -> Sequence[Principal] | Refused:
        """Everybody with grants and keys."""
        try:
            return await self._database.read(access.list_principals)
        except SqlUnavailable as error:
            return refuse_sql(error)

    async def get(self, name: str) -> Principal | Refused:
        """One principal."""
        try:
            found = await self._database.read(partial(access.list_principals, name=name))
        except SqlUnavailable as error:
            return refuse_sql(error)
        return found[0] if found else _refuse_principal(name)

    async def put(self, name: str, grants: Sequence[Grant], who: Who) -> bool | Refused:
        """Creates a principal, or replaces its grants; whether it is new."""

        def work(conn: Any) -> bool:  # noqa: ANN401
            before = access.put_principal(conn, name, grants, self._clock.now_ms())
            old = None if before is None else {"grants": _show(before)}
            self._record(conn, who, "principal.put", name, old, {"grants": _show(grants)})
            return before is None

        return await self._write(work)

    async def delete(self, name: str, who: Who) -> Refused | None:
        """Forgets a principal: its keys are of no use any more."""

        def work(conn: Any) -> bool:  # noqa: ANN401
            before = access.delete_principal(conn, name)
            if before is not None:
                self._record(conn, who, "principal.delete", name, {"grants": _show(before)}, None)
            return before is not None

        found = await self._write(work)
        if isinstance(found, Refused):
            return found
        return None if found else _refuse_principal(name)

    async def make_key(self, name: str, label: str | None, life_ms: int | None, who: Who) -> MadeKey | Refused:
        """A key of a principal, shown once."""

        def work(conn: Any) -> MadeKey | KeyRefusal:  # noqa: ANN401
            now_ms = self._clock.now_ms()
            expires_ms = None if life_ms is None else now_ms + life_ms
            made = access.make_key(conn, name, label, now_ms, expires_ms, self._random_bytes)
            if isinstance(made, MadeKey):
                after = {"key_id": made.key.key_id, "label": label, "expires_ms": expires_ms}
                self._record(conn, who, "key.create", name, None, after)
            return made

        made = await self._write(work)
        if made is KeyRefusal.TOO_MANY_KEYS:
            detail = f"{name} has {access.MAX_KEYS} keys that are valid; revoke the one that is not used any more"
            return Refused(RefusalCode.TOO_MANY_KEYS, detail)
        return _refuse_principal(name) if isinstance(made, KeyRefusal) else made

    async def revoke(self, key_id: str, who: Who) -> Refused | None:
        """Ends a key: all processes refuse it within seconds."""

        def work(conn: Any) -> str | None:  # noqa: ANN401
            principal = access.revoke_key(conn, key_id)
            if principal is not None:
                self._record(conn, who, "key.revoke", principal, {"key_id": key_id}, None)
            return principal

        found = await self._write(work)
        if isinstance(found, Refused):
            return found
        return None if found is not None else Refused(RefusalCode.NOT_FOUND, f"there is no key {key_id}")

    async def _write(self, work: Callable[[Any], T]) -> T | Refused:
        """What was written holds here at once."""
        try:
            result = await self._database.run(work)
        except SqlUnavailable as error:
            return refuse_sql(error)
        try:
            await self.refresh()
        except SqlUnavailable as error:  # what was written stands, and is seen a little later
            _LOG.warning("access_not_refreshed", reason=str(error))
        return result

    def _record(
        self,
        conn: Any,  # noqa: ANN401
        who: Who,
        what: str,
        target: str,
        before: Mapping[str, object] | None,
        after: Mapping[str, object] | None,
    ) -> None:
        record_act(conn, ActEntry(self._clock.now_ms(), who.actor, what, target, who.reason or None, before, after))


def _refuse_principal(name: str) -> Refused:
    return Refused(RefusalCode.NOT_FOUND, f"there is no principal {name}")


def _show(grants: Sequence[Grant]) -> list[str]:
    return [f"{grant.verb.value}:{grant.groups}:{grant.topics}" for grant in sorted(grants)]


def _make_static(key: str) -> Mapping[str, StoredKey]:
    return {read_key_id(key) or "": StoredKey(_FIRST_ADMIN, hash_key(key), None)}


# --- sessions of people: what a browser shows instead of the API key that it was given once ---
# Nothing of them is stored. A session is signed with the bridge's own key and bound to what is stored of the API key,
# so every process knows it, nobody can make one from what is in the tables of keys, and it ends with its time or its
# key.

LIFE_S = 8 * 3_600
_SESSION_PURPOSE = b"console session"
_MAC_BYTES = 32


class Sessions:
    """Begins sessions and knows them again."""

    def __init__(self, access: AccessService, keyring: Keyring, now_ms: Callable[[], int]) -> None:
        self._access = access
        self._keyring = keyring
        self._now_ms = now_ms

    def begin(self, key: str) -> str | None:
        """The text of a new session for whoever has this API key; None if nobody has."""
        key_id = read_key_id(key)
        if key_id is None or not self._keyring.key_ids or self._access.identify(key) is None:
            return None
        known = self._access.find_key(key_id)
        if known is None:
            return None
        until_s = self._now_ms() // 1000 + LIFE_S
        signer = self._keyring.key_ids[0]
        return f"{key_id}.{until_s}.{signer}.{self._sign(signer, key_id, until_s, known[1])}"

    def find(self, text: str) -> Caller | None:
        """Whose session this is; None if it is none, or over."""
        key_id, _, rest = text.partition(".")
        until, _, rest = rest.partition(".")
        signer, _, mac = rest.partition(".")
        if signer not in self._keyring.key_ids or not (until.isascii() and until.isdigit() and len(until) < 12):
            return None
        known = self._access.find_key(key_id)
        if known is None or int(until) * 1000 <= self._now_ms():
            return None
        is_ours = compare_digest(mac.encode(), self._sign(signer, key_id, int(until), known[1]).encode())
        return known[0] if is_ours else None

    def _sign(self, signer: str, key_id: str, until_s: int, secret_hash: str) -> str:
        mac = self._keyring.begin(signer, _SESSION_PURPOSE, _MAC_BYTES)
        mac.update(f"{key_id}\0{until_s}\0{secret_hash}".encode())
        return mac.hexdigest()


# --- what clients of RocketMQ sign their requests with: a secret beside each API key (decision 0021) ---
# It is made of the bridge's own key and of what is stored of the API key: nothing more is stored, it ends with either.

_SIGNING_PURPOSE = b"request signing"
_SECRET_BYTES = 32


class SigningSecrets:
    """Finds the secrets of keys that are valid now."""

    def __init__(self, access: AccessService, keyring: Keyring) -> None:
        self.access = access
        self._keyring = keyring

    def make(self, key_id: str) -> str | None:
        """The secret of a key, as its owner is told; None if there is no such key."""
        found = self.find(key_id)
        return found[1][0].decode() if found is not None and found[1] else None

    def find(self, key_id: str) -> tuple[Caller, Sequence[bytes]] | None:
        """Whose key this is, and its secret by each of the bridge's keys. Proves nothing."""
        known = self.access.find_key(key_id)
        if known is None:
            return None
        caller, secret_hash = known
        return caller, [self._derive(signer, key_id, secret_hash) for signer in self._keyring.key_ids]

    def _derive(self, signer: str, key_id: str, secret_hash: str) -> bytes:
        mac = self._keyring.begin(signer, _SIGNING_PURPOSE, _SECRET_BYTES)
        mac.update(f"{key_id}\0{secret_hash}".encode())
        return urlsafe_b64encode(mac.digest()).rstrip(b"=")
