"""Keeps an instance's check endpoint registered while it lives: a lease, renewed at a third of its time."""

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Self, TypeAlias

from outbox.client.calls import Request, leave_call, register_call
from outbox.client.config import check_count
from outbox.client.connection import LoopConnection, ThreadConnection, run_now
from outbox.client.errors import Closed, Misuse, NotFound, OutboxError, Refused
from outbox.client.replies import Reply

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.5
_LEAVE_S = 3.0
_MAX_LEASE_S = 86_400

Ask: TypeAlias = Callable[[Request, float | None], Awaitable[Reply]]


class LeaseKeeper:
    """One endpoint of one group; what both kinds of lease do."""

    def __init__(self, group: str, url: str, lease_seconds: int) -> None:
        check_count("lease_seconds", lease_seconds, most=_MAX_LEASE_S)
        self.is_registered = False
        self._register = register_call(group, url, lease_seconds)
        self._leave = leave_call(group, url)
        self._interval_s = lease_seconds / 3
        self._pause_s = _FIRST_PAUSE_S

    async def run_once(self, ask: Ask) -> float:
        """Registers or renews; how long to wait before the next time. Raises Refused."""
        try:
            await ask(self._register, self._interval_s)
        except OutboxError as error:
            if isinstance(error, Refused):
                self.is_registered = False
                # a group is made by its first prepare; an endpoint may be asked for a proof before it listens
                if not isinstance(error, NotFound) and error.code != "callback-unverified":
                    raise
            pause_s = min(self._pause_s, self._interval_s)
            self._pause_s *= 2
            _LOG.warning("endpoint lease not renewed (%s), next try in %.1f s", type(error).__name__, pause_s)
            return pause_s
        self.is_registered = True
        self._pause_s = _FIRST_PAUSE_S
        return self._interval_s

    async def renew(self, ask: Ask) -> float:
        """The same once it has begun. A refusal may pass too: a group or a grant may come back."""
        try:
            return await self.run_once(ask)
        except Refused as error:
            _LOG.error("endpoint lease refused (%s)", error.code)
            return self._interval_s

    async def leave(self, ask: Ask) -> None:
        """Ends the lease now; if that fails, it runs out."""
        self.is_registered = False
        try:
            await ask(self._leave, _LEAVE_S)
        except OutboxError as error:
            _LOG.warning("endpoint lease not ended (%s): it runs out", type(error).__name__)


class EndpointLease:
    """`with bridge.endpoint_lease(url):` the bridge may ask this instance at `url` until the block ends."""

    def __init__(self, link: ThreadConnection, keeper: LeaseKeeper) -> None:
        self._link = link
        self._keeper = keeper
        self._renewing: threading.Thread | None = None
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)

    @property
    def is_registered(self) -> bool:
        """Whether the last registration or renewal was acknowledged."""
        return self._keeper.is_registered

    def start(self) -> Self:
        """Registers, and renews from now on. Raises Refused.

        A bridge that is away, and a group that nobody has used yet, are tried again later.
        """
        if self._renewing is not None:
            raise Misuse("started already")
        with self._link.lifetime.use():
            pause_s = run_now(self._keeper.run_once(self._link.ask))
        arguments = (self._keeper, self._link, pause_s, self._stop)
        self._renewing = threading.Thread(target=_renew_until, args=arguments, name="outbox-lease", daemon=True)
        self._renewing.start()
        return self

    def close(self) -> None:
        """Renews no more, and takes the endpoint away."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            self._stop.set()
            renewing.join(_LEAVE_S)
            self._stop = threading.Event()
            run_now(self._keeper.leave(self._link.ask))

    def __enter__(self) -> Self:
        return self if self._renewing is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _renew_until(keeper: LeaseKeeper, link: ThreadConnection, pause_s: float, stop: threading.Event) -> None:
    while not stop.wait(pause_s):
        try:
            pause_s = run_now(keeper.renew(link.ask))
        except Closed:
            return


class AsyncEndpointLease:
    """`async with bridge.endpoint_lease(url):` the same in an event loop."""

    def __init__(self, link: LoopConnection, keeper: LeaseKeeper) -> None:
        self._link = link
        self._keeper = keeper
        self._renewing: asyncio.Task[None] | None = None

    @property
    def is_registered(self) -> bool:
        """Whether the last registration or renewal was acknowledged."""
        return self._keeper.is_registered

    async def start(self) -> Self:
        """Registers, and renews from now on. Raises Refused.

        A bridge that is away, and a group that nobody has used yet, are tried again later.
        """
        if self._renewing is not None:
            raise Misuse("started already")
        with self._link.lifetime.use():
            pause_s = await self._keeper.run_once(self._link.ask)
        self._renewing = asyncio.create_task(self._renew_forever(pause_s))
        return self

    async def close(self) -> None:
        """Renews no more, and takes the endpoint away."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await self._keeper.leave(self._link.ask)

    async def __aenter__(self) -> Self:
        return self if self._renewing is not None else await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _renew_forever(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            pause_s = await self._keeper.renew(self._link.ask)
