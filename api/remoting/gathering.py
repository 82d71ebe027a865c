"""What the door does with calls of all connections at once: batches, and which sends are first tries."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

# --- calls of all connections, gathered into batches: one put for many is what makes the door fast ---

C = TypeVar("C")
A = TypeVar("A")
_MOST_CALLS = 500
_MOST_BATCHES = 2


class Gatherer(Generic[C, A]):
    """A batch goes out as soon as fewer than two are on their way, with whatever has come by then."""

    def __init__(
        self,
        ask: Callable[[Sequence[C]], Awaitable[Sequence[A]]],
        give: Callable[[Sequence[C], Sequence[A]], None],
        failed: Callable[[Exception], A],
    ) -> None:
        self._ask = ask
        self._give = give
        self._failed = failed
        self._waiting: deque[C] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    def __len__(self) -> int:
        """How many wait to go out."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether everything has its answer."""
        return not self._waiting and not self._batches

    def add(self, call: C) -> None:
        """Its answer is given later, once, with those of its batch."""
        self._waiting.append(call)
        if not self._is_scheduled and len(self._batches) < _MOST_BATCHES:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        if self._waiting and len(self._batches) < _MOST_BATCHES:
            batch = [self._waiting.popleft() for _ in range(min(_MOST_CALLS, len(self._waiting)))]
            task = asyncio.ensure_future(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._end)

    async def _run(self, batch: Sequence[C]) -> None:
        try:
            answers = await self._ask(batch)
        except Exception as error:  # noqa: BLE001 - nobody waits for the task; whoever waits for the calls is told
            answers = [self._failed(error)] * len(batch)
        self._give(batch, answers)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._batches.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        self._begin()


# --- which sends cannot be a repeat, and since when their key can exist at most (decision 0020) ---
# A client makes UNIQ_KEY when it first sends a message, and writes into it the time on its own clock; each try says
# when it was made, on the same clock. Their difference is the age of the key. That the try itself was not held up on
# its way is known from the connection: it comes behind the end of a transaction, which the client wrote after it had
# our answer.

MAX_AGE_MS = 200  # of a key: what a client needs between making it and stamping the first try
_MAX_PROOF_MS = 2_000
_KEEP_MS = 5_000  # keys: longer than age and proof together
_MARK_EVERY_MS = 250
_MOST_MARKS = 64
_LEARN = 8  # keys, until the beginning of the client's month is believed
_QUARTER_MS = 900_000  # every time zone's midnight is at one
_KEY_LENGTHS = frozenset({32, 56})  # of hexadecimal digits, by IPv4 and IPv6
_MOST_KEYS, _LONGEST_NAMED = 100_000, 200


class RecentUniqueKeys:
    """Keys that this door has seen lately, of all connections. What it forgets is older than a key may be."""

    def __init__(self) -> None:
        self._new: set[tuple[str, str]] = set()
        self._old: set[tuple[str, str]] = set()
        self._turned_ms = 0

    def add(self, group: str, key: str, now_ms: int) -> bool:
        """Whether the key was not known. `now_ms`: monotonic. When there are too many, none is new for a while."""
        if now_ms - self._turned_ms > _KEEP_MS:
            self._new, self._old, self._turned_ms = set(), self._new, now_ms
        named = group, key
        is_long = len(group) + len(key) > _LONGEST_NAMED  # no client makes such a one
        if is_long or named in self._new or named in self._old or len(self._new) >= _MOST_KEYS:
            return False
        self._new.add(named)
        return True


class FirstTries:
    """What one connection has proved."""

    def __init__(self) -> None:
        self._marks: OrderedDict[str, int] = OrderedDict()
        self._marked_ms = self._proven_ms = 0
        self._month_ms: int | None = None
        self._learned = 0

    def note_answer(self, transaction_id: str, kafka_ms: int) -> None:
        """A send was answered with this id, which the client can end from now on."""
        if kafka_ms - self._marked_ms >= _MARK_EVERY_MS:
            self._marks[transaction_id] = self._marked_ms = kafka_ms
            if len(self._marks) > _MOST_MARKS:
                self._marks.popitem(last=False)

    def note_end(self, transaction_id: str) -> None:
        """What comes on this connection from now on was written after that answer."""
        at_ms = self._marks.pop(transaction_id, None)
        if at_ms is not None:
            self._proven_ms = max(self._proven_ms, at_ms)

    def find(self, key: str, born_ms: int, kafka_ms: int) -> int | None:
        """Kafka's time, no later than when the key was first sent anywhere; None if that is not known."""
        age_ms = self._find_age(key, born_ms)
        if age_ms is None or not kafka_ms or not 0 <= kafka_ms - self._proven_ms <= _MAX_PROOF_MS:
            return None
        return self._proven_ms - age_ms

    def _find_age(self, key: str, born_ms: int) -> int | None:
        if len(key) not in _KEY_LENGTHS:
            return None
        try:
            since_month_ms = int(key[-12:-4], 16)
        except ValueError:
            return None
        month_ms, age_ms = divmod(born_ms - since_month_ms, _QUARTER_MS)
        self._learned += 1
        if self._month_ms is None or month_ms < self._month_ms:
            self._month_ms, self._learned = month_ms, 1
        is_fresh = month_ms == self._month_ms and age_ms <= MAX_AGE_MS
        return age_ms if is_fresh and self._learned > _LEARN else None
