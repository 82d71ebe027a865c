"""When a call is sent again, and what its caller is told in the end. Pure: time and chance are arguments."""

from collections.abc import Callable
from dataclasses import dataclass

from outbox.calls import Call, PlainCall
from outbox.errors import OutboxError, Outcome, OutcomeUnknown, Problem, Unavailable, refusal_of
from outbox.replies import Reply, TogetherRefused, Told

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
_TEMPORARY = frozenset({408, 429, 503})


@dataclass(frozen=True, slots=True)
class Again:
    """Send it again after a pause."""

    pause_s: float


class Course:
    """One call from its first try to its answer. `chance`: a number in [0, 1) at each call."""

    def __init__(self, call: Call | PlainCall, deadline_s: float, chance: Callable[[], float]) -> None:
        self.is_alone = isinstance(call, PlainCall)
        self.tries = 0
        self._call = call
        self._deadline_s = deadline_s
        self._chance = chance
        self._is_doubtful = False  # an earlier try may have been applied
        self._why = "the deadline passed before it was sent"
        self._transaction_id = call.transaction_id

    def left_s(self, now_s: float) -> float:
        """Time until the deadline."""
        return self._deadline_s - now_s

    def take(self, told: Told, now_s: float) -> Reply | Again:
        """What follows from an answer, or from none. Raises the OutboxError that its caller is told."""
        self.tries += 1
        if isinstance(told, Reply):
            return told
        if isinstance(told, TogetherRefused):
            self.is_alone = True
            return Again(0.0)
        if isinstance(told, Problem):
            self._note_problem(told)
            if not self._is_passing(told):
                raise self._refused(told)
            return self._again(told.retry_after_s, now_s)
        self._why = told.why
        self._doubt(told.is_sent)
        return self._again(told.retry_after_s, now_s)

    def give_up(self, retry_after_s: float | None = None) -> OutboxError:
        """What is told at the deadline."""
        if self._is_doubtful:
            return OutcomeUnknown(self._why, self._transaction_id)
        return Unavailable(self._why, retry_after_s)

    def _note_problem(self, problem: Problem) -> None:
        self._why = str(problem)
        self._transaction_id = problem.transaction_id or self._transaction_id
        self._doubt(problem.outcome is Outcome.UNKNOWN or (problem.outcome is None and problem.status >= 500))

    def _doubt(self, is_doubtful: bool) -> None:
        """Reading changes nothing, whatever becomes of it."""
        is_read = isinstance(self._call, PlainCall) and self._call.method == "GET"
        self._is_doubtful = self._is_doubtful or (is_doubtful and not is_read)

    def _is_passing(self, problem: Problem) -> bool:
        return problem.status in _TEMPORARY or problem.status >= 500

    def _refused(self, problem: Problem) -> OutboxError:
        """The refusal of a repeat does not speak of the try before it, unless it tells what is recorded."""
        refused = refusal_of(problem)
        is_definite = not self._is_doubtful or isinstance(self._call, PlainCall) or self._call.is_query
        if is_definite and problem.outcome is not Outcome.UNKNOWN:
            return refused
        unknown = OutcomeUnknown(f"an earlier try may have been applied; the last one: {problem}", self._transaction_id)
        unknown.__cause__ = refused
        return unknown

    def _again(self, retry_after_s: float | None, now_s: float) -> Again:
        is_repeatable = isinstance(self._call, PlainCall) or self._call.is_repeatable
        if self._is_doubtful and not is_repeatable:
            raise self.give_up(retry_after_s)
        most_s = min(FIRST_PAUSE_S * 2 ** min(self.tries - 1, 10), MAX_PAUSE_S)
        pause_s = (retry_after_s or 0.0) + most_s * self._chance()
        if pause_s >= self.left_s(now_s):
            raise self.give_up(retry_after_s)
        return Again(pause_s)
