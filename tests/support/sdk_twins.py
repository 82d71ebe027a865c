"""Both faces of `outbox` in one shape, so that one suite holds both: every call is awaited.

The blocking face runs in threads; the other in the loop of the test.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from outbox import (
    AsyncBridge,
    AsyncTransactionListener,
    AsyncTransactionProducer,
    Bridge,
    BridgeConfig,
    HalfMessage,
    LocalTransactionState,
    TransactionListener,
    TransactionProducer,
)
from outbox.client.block import TransactionBlock

Body = Callable[[TransactionBlock], Any]
Local = Callable[[HalfMessage, object], Any]
Checked = Callable[[HalfMessage], Any]


class Session:
    """What is left of a database session: what was called, in order. `fails`: what a method raises."""

    def __init__(self, **fails: BaseException) -> None:
        self.called: list[str] = []
        self.fails = fails
        self.on_write: Callable[[str], object] = len

    def commit(self) -> None:
        self._note("commit")

    def rollback(self) -> None:
        self._note("rollback")

    def flush(self) -> None:
        self._note("flush")

    def write(self, session: "Session", transaction_id: str, producer_group: str) -> None:
        """It is its own transaction record."""
        self.on_write(transaction_id)
        self._note(f"write {producer_group} {len(transaction_id)}")

    def _note(self, name: str) -> None:
        self.called.append(name)
        error = self.fails.get(name.partition(" ")[0])
        if error is not None:
            raise error


class AwaitedSession(Session):
    """The same for event loops."""

    async def commit(self) -> None:  # type: ignore[override]
        self._note("commit")

    async def rollback(self) -> None:  # type: ignore[override]
        self._note("rollback")

    async def flush(self) -> None:  # type: ignore[override]
        self._note("flush")

    async def write(self, session: Session, transaction_id: str, producer_group: str) -> None:  # type: ignore[override]
        self.on_write(transaction_id)
        self._note(f"write {producer_group} {len(transaction_id)}")


class _Listener(TransactionListener):
    def __init__(self, execute: Local, check: Checked) -> None:
        self._execute = execute
        self._check = check

    def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        return self._execute(message, arg)

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        return self._check(message)


class _AsyncListener(AsyncTransactionListener):
    def __init__(self, execute: Local, check: Checked) -> None:
        self._execute = execute
        self._check = check

    async def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        return self._execute(message, arg)

    async def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        return self._check(message)


def _never(*_: object) -> LocalTransactionState:
    raise AssertionError("not to be called")


class BlockingTwin:
    """Bridge and TransactionProducer."""

    def __init__(self, url: str, group: str, **options: Any) -> None:
        listener = _Listener(options.pop("execute", _never), options.pop("check", _never))
        self.session = Session
        self.face: Bridge = TransactionProducer(group, listener, url, record=Session(), **options)

    async def do(self, name: str, *args: Any, **options: Any) -> Any:
        """One call of the face."""
        return await asyncio.to_thread(getattr(self.face, name), *args, **options)

    async def block(self, session: Session, body: Body, **options: Any) -> TransactionBlock:
        """`with bridge.transaction(session)` around a body; the block."""
        return await asyncio.to_thread(self._block, session, body, options)

    def _block(self, session: Session, body: Body, options: dict[str, Any]) -> TransactionBlock:
        self.face._record = session
        with self.face.transaction(session, **options) as transaction:
            body(transaction)
        return transaction


class AwaitedTwin:
    """AsyncBridge and AsyncTransactionProducer."""

    def __init__(self, url: str, group: str, **options: Any) -> None:
        listener = _AsyncListener(options.pop("execute", _never), options.pop("check", _never))
        self.session = AwaitedSession
        self.face: AsyncBridge = AsyncTransactionProducer(group, listener, url, record=Session(), **options)

    async def do(self, name: str, *args: Any, **options: Any) -> Any:
        """One call of the face."""
        return await getattr(self.face, name)(*args, **options)

    async def block(self, session: Session, body: Body, **options: Any) -> TransactionBlock:
        """`async with bridge.transaction(session)` around a body; the block."""
        self.face._record = session
        async with self.face.transaction(session, **options) as transaction:
            made = body(transaction)
            if inspect.isawaitable(made):
                await made
        return transaction


Twin = BlockingTwin | AwaitedTwin
MakeTwin = Callable[..., Twin]
TWINS = {"blocking": BlockingTwin, "awaited": AwaitedTwin}
HURRY = BridgeConfig(call_timeout_s=3.0, close_timeout_s=2.0)
