"""What can be asked of the bridge, the same for threads and for event loops: `Ask` alone differs."""

from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import TypeAlias

from outbox.calls import Call, PlainCall, PrepareOptions, end_call, get_call, prepare_call
from outbox.errors import AlreadyEnded, NotPrepared
from outbox.listener import HalfMessage, Resolution, TransactionState
from outbox.message import Message, as_messages
from outbox.replies import Prepared, Reply, TransactionView, read_prepared, read_view

Ask: TypeAlias = Callable[[Call | PlainCall], Awaitable[Reply]]


class Verbs:
    """Calls of one producer group."""

    def __init__(self, group: str, ask: Ask, *, are_prepares_keyed: bool) -> None:
        self.group = group
        self._ask = ask
        self._are_prepares_keyed = are_prepares_keyed

    async def prepare(
        self, messages: Message | Sequence[Message], options: PrepareOptions
    ) -> tuple[HalfMessage, Prepared]:
        """Stores a half message. Raises AlreadyEnded if the caller's idempotency key names one that has ended."""
        listed = as_messages(messages)
        named = _with_key(options) if self._are_prepares_keyed else options
        reply = await self._ask(prepare_call(self.group, listed, named))
        prepared = read_prepared(reply.members)
        state = reply.members["state"]
        if state != TransactionState.PREPARED:
            ended = AlreadyEnded(prepared.transaction_id, state)
            if options.get("idempotency_key") is None and state == TransactionState.ROLLED_BACK:
                raise NotPrepared("a check has ended it before the answer to its prepare came") from ended
            raise ended
        half = HalfMessage(prepared.transaction_id, self.group, listed, named.get("idempotency_key"))
        return half, prepared

    async def publish(self, messages: Message | Sequence[Message], options: PrepareOptions) -> TransactionView:
        """Publishes without a local transaction."""
        call = prepare_call(self.group, as_messages(messages), _with_key(options), is_published=True)
        return read_view((await self._ask(call)).members)

    async def end(self, transaction_id: str, resolution: Resolution, nonce: str | None = None) -> TransactionView:
        """Ends a transaction of this group, or answers a check."""
        return read_view((await self._ask(end_call(transaction_id, resolution, self.group, nonce))).members)

    async def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded now."""
        return read_view((await self._ask(get_call(transaction_id, with_messages=with_messages))).members)


def _with_key(options: PrepareOptions) -> PrepareOptions:
    """With a key of our own if there is none: a repeat is then known as one."""
    if options.get("idempotency_key") is not None:
        return options
    return {**options, "idempotency_key": f"sdk-{token_hex(16)}"}
