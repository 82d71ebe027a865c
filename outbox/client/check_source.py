"""How an instance comes by its checks: it fetches them, or lends the bridge its endpoint while it lives.

    worker = bridge.pull_worker(record.answers(engine))
    threading.Thread(target=worker.run_forever, args=(stop,)).start()

What is not answered in time is left out: its lease runs out, and the bridge gives it to another.
"""

import asyncio
import logging
import os
import random
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from outbox.client.calls import Call, Request, claim_call, end_call, leave_call, register_call
from outbox.client.checks import Answer, AsyncAnswer, Check, Tell, read_call
from outbox.client.config import check_count, check_seconds
from outbox.client.connection import LoopConnection, OwnThreads, ThreadConnection, run_now
from outbox.client.errors import Closed, Misuse, NotFound, NotPullMode, OutboxConfigError, OutboxError, Refused
from outbox.client.listener import Answered, read_answered
from outbox.client.replies import Reply

# --- pull mode: fetches a group's due checks from the bridge and answers them, for services that cannot be called ---

_LOG: Final = logging.getLogger("outbox")
_LOOK_S: Final = 0.1
_MAX_WAIT_S: Final = 10.0  # an exchange gets this and its slack
_EXCHANGE_S: Final = 5.0
_MAX_LEASE_S: Final = 3_600.0

Ask: TypeAlias = Callable[[Call | Request, float | None], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class PullConfig:
    """Bounds and rhythms. `lease_s`: nobody else gets a claimed check for so long; `send_s` of it is for sending.

    `wait_s`: how long the bridge waits for something to come due. `min_pause_s`, `max_pause_s`: after failures.
    """

    max_checks: int = 100
    lease_s: float = 60.0
    send_s: float = 15.0
    wait_s: float = 10.0
    min_pause_s: float = 0.5
    max_pause_s: float = 30.0

    def __post_init__(self) -> None:
        check_count("max_checks", self.max_checks, most=1_000)
        check_seconds("wait_s", self.wait_s, least=0.0)
        for name in ("lease_s", "send_s", "min_pause_s", "max_pause_s"):
            check_seconds(name, getattr(self, name))
        if not max(self.send_s, 1.0) < self.lease_s <= _MAX_LEASE_S or self.wait_s > _MAX_WAIT_S:
            raise OutboxConfigError("lease_s is above send_s and 1, and at most 3600; wait_s at most 10")
        if self.min_pause_s > self.max_pause_s:
            raise OutboxConfigError("min_pause_s is at most max_pause_s")

    def pause_s(self, failures: int, chance: float) -> float:
        """Up to twice as long each time."""
        return min(self.min_pause_s * 2.0 ** min(failures - 1, 20), self.max_pause_s) * (0.5 + chance / 2)


class PullCounts(NamedTuple):
    """What one round did. `late`: answers to what has ended meanwhile; `failed`: not answered, claimed again later."""

    claimed: int = 0
    answered: int = 0
    late: int = 0
    failed: int = 0


T = TypeVar("T")


class PullRounds:
    """Claim, answer, send: the same for threads and event loops."""

    def __init__(self, group: str, answer: AsyncAnswer, config: PullConfig) -> None:
        self._group = group
        self._answer = answer
        self._config = config
        self._looking: asyncio.Future[None] | None = None
        self._claim = claim_call(group, config.max_checks, config.wait_s, config.lease_s)
        self._is_accepted = False

    async def run_once(self, ask: Ask, stopping: asyncio.Event | None = None) -> PullCounts:
        """One claim, and its answers. A stop gives the claim up, or lets the answers go out. Raises OutboxError."""
        reply = await _unless(stopping, self._ask_when_free(ask))
        if reply is None:
            return PullCounts()
        self._is_accepted = True
        checks = read_call(reply.members).checks
        if not checks:
            return PullCounts()
        found = await self._look_up(checks)
        sent = await asyncio.gather(*[self._send(ask, check, answer) for check, answer in found])
        return PullCounts(len(checks), sent.count("answered"), sent.count("late"), sent.count("failed"))

    async def run_forever(self, ask: Ask, stopping: asyncio.Event) -> None:
        """Rounds until the stop, or the bridge is closed.

        Raises NotPullMode if the first claim is refused so; no other error ends it.
        """
        failures = 0
        while not stopping.is_set():
            try:
                counts = await self.run_once(ask, stopping)
                failures = failures + 1 if counts.failed else 0
            except Exception as error:  # the loop that runs for ever
                if isinstance(error, Closed):
                    return
                if isinstance(error, NotPullMode) and not self._is_accepted:
                    raise
                failures += 1
                why = error.code if isinstance(error, Refused) else type(error).__name__
                _LOG.warning("checks_not_fetched group=%s error=%s failures=%d", self._group, why, failures)
            if failures:
                await _unless(stopping, asyncio.sleep(self._config.pause_s(failures, random.random())))  # noqa: S311

    async def _ask_when_free(self, ask: Ask) -> Reply:
        """Claims nothing while an answer that was too late is still being looked for."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        return await ask(self._claim, self._config.wait_s + _EXCHANGE_S)

    async def _look_up(self, checks: Sequence[Check]) -> list[tuple[Check, Answered]]:
        """The answers to send before the leases near their end."""
        asked = {check.transaction_id: check for check in checks}
        found: dict[str, Answered] = {}

        def tell(check: Check, answer: Answered) -> None:
            read_answered(answer)
            found[asked[check.transaction_id].transaction_id] = answer

        try:
            self._looking = asyncio.ensure_future(self._answer(checks, tell))
            self._looking.add_done_callback(_take_error)
            await asyncio.wait_for(asyncio.shield(self._looking), self._config.lease_s - self._config.send_s)
        except Exception as error:  # noqa: BLE001 - the outermost edge of the user's own code
            _LOG.warning("checks_left_out error=%s answered=%d", type(error).__name__, len(found))
        told = list(found.items())  # a thread that is late may still add to it
        return [(asked[transaction_id], answer) for transaction_id, answer in told]

    async def _send(self, ask: Ask, check: Check, answer: Answered) -> str:
        """What became of one answer; all of a round travel together."""
        resolution, remark = read_answered(answer)
        try:
            await ask(end_call(check.transaction_id, resolution, self._group, check.nonce, remark=remark), None)
        except Refused as error:
            _LOG.info("check_answered_late transaction=%s code=%s", check.transaction_id, error.code)
            return "late"
        except OutboxError as error:
            _LOG.warning("check_not_answered transaction=%s error=%s", check.transaction_id, type(error).__name__)
            return "failed"
        return "answered"


class PullWorker:
    """For threads; made by `Bridge.pull_worker`."""

    def __init__(self, link: ThreadConnection, group: str, answer: Answer, config: PullConfig) -> None:
        self._link = link
        self._answer = answer
        self._group = group
        self._config = config

    def run_once(self) -> PullCounts:
        """One claim, and its answers. Raises OutboxError."""
        return self._run(threading.Event(), PullRounds.run_once)

    def run_forever(self, stop: threading.Event) -> None:
        """Rounds until `stop`, whose answers in hand still go out, or until the bridge is closed.

        Raises NotPullMode if the bridge does not let the group fetch its checks.
        """
        with suppress(Closed):
            self._run(stop, PullRounds.run_forever)

    def _run(self, stop: threading.Event, run: Callable[[PullRounds, Ask, asyncio.Event], Coroutine[Any, Any, T]]) -> T:
        """In a loop of its own, so that a claim can be given up. Answers are looked for in one thread more; one that
        hangs is not waited for at the end.
        """
        if self._link.lifetime.is_closing:
            raise Closed("used after close")
        threads, gone = OwnThreads(thread_name_prefix="outbox-pull"), threading.Event()

        async def answer(checks: Sequence[Check], tell: Tell) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, self._answer, checks, tell)

        async def work() -> T:
            asyncio.get_running_loop().set_default_executor(threads)  # for names that are looked up
            link, stopping = LoopConnection(self._link.url, self._link.config), asyncio.Event()
            rounds = PullRounds(self._group, answer, self._config)
            running = asyncio.ensure_future(run(rounds, link.ask, stopping))
            try:
                while not running.done():
                    await asyncio.wait([running], timeout=_LOOK_S)  # an event of threads cannot be awaited
                    if stop.is_set():
                        stopping.set()
                    if gone.is_set() or self._link.lifetime.is_closing:
                        raise Closed("closed before its end")
                return running.result()
            finally:
                await link.cut_off()

        try:
            result: T = threads.submit(asyncio.run, work()).result()
            return result
        finally:
            gone.set()


class AsyncPullWorker:
    """For an event loop; made by `AsyncBridge.pull_worker`."""

    def __init__(self, link: LoopConnection, group: str, answer: AsyncAnswer, config: PullConfig) -> None:
        self._link = link
        self._rounds = PullRounds(group, answer, config)

    async def run_once(self) -> PullCounts:
        """As PullWorker.run_once."""
        return await self._rounds.run_once(self._ask)

    async def run_forever(self, stop: asyncio.Event) -> None:
        """As PullWorker.run_forever. Cancelled, it leaves what it holds to the end of its lease."""
        await self._rounds.run_forever(self._ask, stop)

    async def _ask(self, call: Call | Request, timeout_s: float | None) -> Reply:
        """A call until the bridge is closed; its close does not wait for it."""
        if self._link.lifetime.is_closing:
            raise Closed("used after close")
        return await self._link.ask(call, timeout_s)


def _take_error(ended: "asyncio.Future[None]") -> None:
    """What comes after its time is over interests nobody."""
    if not ended.cancelled():
        ended.exception()


async def _unless(stopping: asyncio.Event | None, work: Awaitable[Reply | None]) -> Reply | None:
    """What it returns; None if the stop comes first, which cancels it."""
    if stopping is None:
        return await work
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, stop):
            one.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


# --- keeps an instance's check endpoint registered while it lives: a lease, renewed at a third of its time ---

_FIRST_PAUSE_S = 0.5
_LEAVE_S = 3.0
_MAX_ENDPOINT_LEASE_S = 86_400


class LeaseKeeper:
    """One endpoint of one group; what both kinds of lease do."""

    def __init__(self, group: str, url: str, lease_seconds: int, *, is_shared: bool = False) -> None:
        check_count("lease_seconds", lease_seconds, most=_MAX_ENDPOINT_LEASE_S)
        self._is_shared = is_shared
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
        """Ends the lease now; if that fails, or others renew it, it runs out once nobody does."""
        self.is_registered = False
        if self._is_shared:
            return
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
        self._pid = 0  # where it renews
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
        with self._link.lifetime:
            pause_s = run_now(self._keeper.run_once(self._link.ask))
        self._pid = os.getpid()
        arguments = (self._keeper, self._link, pause_s, self._stop)
        self._renewing = threading.Thread(target=_renew_until, args=arguments, name="outbox-lease", daemon=True)
        self._renewing.start()
        return self

    def close(self) -> None:
        """Renews no more, and takes the endpoint away."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None and self._pid == os.getpid():  # a child's end does not take it from its parent
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
        with self._link.lifetime:
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
