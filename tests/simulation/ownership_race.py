"""Two settler instances that both hold one queue of the in-memory log, moved on store call by store call.

An instance is the settler's `OwnedQueue` with the loop around it, on clients of its own. Its coroutine is driven by
hand: each request it sends to the log is a turn, and it goes on when it is given the answer. It touches nothing else
that changes, and time stands still, so where it stands follows from what it has heard: an instance is an automaton,
and a whole contest is a state that can be noted and gone back to.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self

from bridge.core.check_rules import CheckTimes
from bridge.core.errors import QueueHalted, StoreError
from bridge.log_watch import LogWatch, StableOffsetWatch
from bridge.settler.batch import BatchTarget
from bridge.settler.bodies import KnownTopics
from bridge.settler.owner import OwnedQueue
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.writer import QueueCounts, QueueMemory
from bridge.store.memory.link import LogError, Step, StepKind
from bridge.store.memory.process import MemoryProcess
from bridge.store.message_store import QueueOffsets
from bridge.store.op_topic import DatabaseMark, SealWatch
from tests.simulation.stepped_log import INTERNAL, OP, Setting, SteppedOwners, Turn, World
from tests.support.settler_world import NoDatabase, RecordingObserver

GONE = -1
"""Where an instance stands that is dead or has let the queue go."""
_TIMES = CheckTimes()
_UNLIMITED = 1_000


class Instance:
    """A process that takes the queue over and settles it, `take_overs` times, as long as it does not halt."""

    def __init__(self, world: "World", name: str, take_overs: int) -> None:
        process = MemoryProcess(world.cluster, name)
        owners = SteppedOwners(world.cluster, process.owners._link)
        self.turn: Turn | None = None
        self.left = take_overs
        self.began: Hashable = None
        self._memory = QueueMemory()
        self._target = BatchTarget(INTERNAL, 0, name)
        self._config = SettlerConfig(max_batch_records=world.setting.max_batch_records, position_delay_ms=0)
        self._ports = SettlerPorts(
            process.store, owners, KnownTopics(process.admin, world.clock), lambda _: _TIMES,
            RecordingObserver(), world.clock, LogWatch(process.admin, INTERNAL, world.clock, NoDatabase()),
            StableOffsetWatch(process.store, world.clock), DatabaseMark(process.store, INTERNAL, SealWatch()),
        )  # fmt: skip
        self._work = self._run()
        self.hear(None)

    def hear(self, answer: Any) -> None:
        """Goes on with the answer to its request up to the next one."""
        self.began = None
        try:
            turn = self._work.send(answer)
            while turn is None:
                turn = self._work.send(None)
        except StopIteration:
            turn = None
        self.turn = turn

    async def _run(self) -> None:
        """As the settler holds a queue, but for its pauses."""
        while self.left:
            self.left -= self.left < _UNLIMITED
            self.began = (self.left, repr(self._memory))
            queue = OwnedQueue(self._target, self._ports, self._config, self._memory, QueueCounts())
            try:
                await queue.recover()
                while True:
                    await queue.run_once()
            except QueueHalted:
                return
            except StoreError:
                continue
            finally:
                await queue.close()


class Automaton:
    """All that an instance can come to. A place is a number; `turns` are the requests with which it stands there.

    Whoever begins a take-over keeps nothing but its `QueueMemory`, so all who begin with an equal one stand alike.
    """

    def __init__(self, start: Callable[[int], Instance], take_overs: int) -> None:
        self._start = start
        self._places: dict[Hashable, int] = {}
        self._next: dict[tuple[int, Hashable], int] = {}
        self._ways: dict[int, tuple[int, Any]] = {}  # how a place was first come to
        self._parked: dict[int, Instance] = {}
        self._firsts: dict[int, int] = {}  # take-overs left -> where a new process stands
        self.turns: dict[int, Turn] = {}
        self.left: dict[int, int] = {}
        self.stamps: dict[int, dict[str, tuple[str, int]]] = {}
        """The epochs it got, by transactional id."""
        self.first = self._begin(take_overs)

    def follow(self, place: int, answer: Any) -> int:
        """Where the answer leads."""
        heard = (place, _freeze(answer))
        if heard not in self._next:
            instance, turn = self.bring(place), self.turns[place]
            instance.hear(answer)
            reached = self._next[heard] = self._place(instance, heard)
            self._ways.setdefault(reached, (place, answer))
            stamps = {} if instance.began else dict(self.stamps[place])
            if turn.step.kind is StepKind.INIT and not instance.began:
                stamps[turn.step.subject] = (turn.step.subject, answer[1])
            self.stamps.setdefault(reached, stamps)
        return self._next[heard]

    def begin_again(self, place: int) -> int:
        """Where a new process stands in place of this one."""
        return self._begin(self.left[place]) if self.left[place] else GONE

    def bring(self, place: int) -> Instance:
        """An instance that stands there."""
        if (parked := self._parked.pop(place, None)) is not None:
            return parked
        answers: list[Any] = []
        while place not in self._firsts.values():
            place, answer = self._ways[place]
            answers.append(answer)
        instance = self._start(next(left for left, first in self._firsts.items() if first == place))
        for answer in reversed(answers):
            instance.hear(answer)
        return instance

    def _begin(self, left: int) -> int:
        if left not in self._firsts:
            instance = self._start(left)
            self._firsts[left] = place = self._place(instance, None)
            self.stamps[place] = {}
        return self._firsts[left]

    def _place(self, instance: Instance, heard: Hashable) -> int:
        if instance.turn is None:
            return GONE
        place = self._places.setdefault(instance.began or heard, len(self._places))
        self._parked[place] = instance
        self.turns.setdefault(place, instance.turn)
        self.left[place] = instance.left
        return place


class State(NamedTuple):
    """Where both instances stand, the number of the log, and whether none has crashed yet."""

    a: int
    b: int
    log: int
    can_crash: bool


class Choice(NamedTuple):
    """What happens next: a request of `who` ("A"), its death ("!A"), the time-out of a transactional id ("~id")."""

    verb: str
    who: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The reverse of `str`."""
        return cls(text[0], text[1:]) if text[0] in "!~" else cls("", text)

    def __str__(self) -> str:
        return self.verb + self.who


class Contest:
    """All runs of one setting, state by state. Not pruned: calls without effect wait for their turns, too."""

    def __init__(self, setting: Setting, *, is_pruned: bool = True) -> None:
        self.world = World(setting)
        self._is_pruned = is_pruned
        self._automata = (
            Automaton(lambda left: Instance(self.world, "A", left), setting.take_overs_of_a),
            Automaton(lambda left: Instance(self.world, "B", left), _UNLIMITED),
        )
        self.start = State(self._automata[0].first, self._automata[1].first, self.world.note(), setting.can_crash)

    def moves(self, state: State) -> list[Choice]:
        """Requests that can be sent; time-outs of Kafka transactions, while one who may yet write waits for an end."""
        self.world.go_back(state.log)
        found: list[Choice] = []
        is_waiting = False
        for which, name in enumerate("AB"):
            turn = self._automata[which].turns.get(state[which])
            if turn is not None and turn.is_ready():
                found.append(Choice("", name))
            elif turn is not None:
                is_waiting |= turn.step.queue == OP and not self._is_harmless(state, which)
        return found + [Choice("~", name) for name in self.world.open_transactions() if is_waiting]

    def crashes(self, state: State) -> list[Choice]:
        """Who can die now."""
        alive = {"A": state.a, "B": state.b}
        return [Choice("!", name) for name, place in alive.items() if state.can_crash and place != GONE]

    def take(self, state: State, choice: Choice) -> tuple[State, list[str]]:
        """What follows, and how it is told. Who dies is started again, unless it is A and its last take-over."""
        told: list[str] = []
        self.world.go_back(state.log)
        which = "AB".find(choice.who)
        if choice.verb == "!":
            told.append(f"{choice.who} is killed")
            after = self._automata[which].begin_again(state[which])
            state = _moved(state, which, after)._replace(can_crash=False)
        elif choice.verb == "~":
            told.append(f"the Kafka transaction of {choice.who} times out")
            self.world.time_out(choice.who)
        else:
            state = self._go(state, which, told)
        if self._is_pruned:
            state = self._run_out(state, told)
        return state._replace(log=self.world.note()), told

    def quieten(self, state: State) -> bool:
        """Lets B, the owner, go on alone while time passes, until nothing it put off is left. False: it halted."""
        world = self.world
        world.go_back(state.log)
        for transactional_id in world.open_transactions():
            world.time_out(transactional_id)
        world.forget()
        if state.b == GONE:
            return False
        owner = self._automata[1].bring(state.b)
        for _ in range(20):
            world.clock._elapsed_ms += 1_000
            world.cluster.agenda.run_due()
            if owner.turn is None:
                break
            owner.hear(world.ask(owner.turn))
            while owner.turn is not None and owner.turn.is_ready():
                owner.hear(world.ask(owner.turn))
        world.clock._elapsed_ms = 0
        return owner.turn is not None

    def _go(self, state: State, which: int, told: list[str]) -> State:
        automaton, place = self._automata[which], state[which]
        turn = automaton.turns[place]
        answer = self.world.ask(turn)
        after = automaton.follow(place, answer)
        told.append(f"{turn.step.client} {_tell(turn.step, answer)}" + (", and gives up" if after == GONE else ""))
        return _moved(state, which, after)

    def _run_out(self, state: State, told: list[str]) -> State:
        """What is refused whenever it comes, and what a fenced A still reads: no order makes a difference."""
        for which, automaton in enumerate(self._automata):
            while state[which] != GONE:
                place = state[which]
                turn, stamps = automaton.turns[place], automaton.stamps[place]
                is_refused = turn.step.subject in stamps and self.world.is_stale(*stamps[turn.step.subject])
                if is_refused and turn.step.kind is not StepKind.INIT:
                    state = self._go(state, which, told)
                elif self._is_harmless(state, which):
                    state = self._go(state, which, told) if turn.is_ready() else _moved(state, which, GONE)
                else:
                    break
        return state

    def _is_harmless(self, state: State, which: int) -> bool:
        """Whether all it will ever send is reads, and what is refused."""
        automaton, place = self._automata[which], state[which]
        stamps = automaton.stamps[place].values()
        return automaton.left[place] == 0 and len(stamps) == 2 and all(self.world.is_stale(*s) for s in stamps)


def _moved(state: State, which: int, place: int) -> State:
    return state._replace(a=place) if which == 0 else state._replace(b=place)


def _freeze(answer: Any) -> Hashable:
    if isinstance(answer, LogError):
        return answer.code
    if isinstance(answer, list):
        return tuple(answer)
    if isinstance(answer, tuple) and answer and isinstance(answer[0], list):
        return (tuple(answer[0]), *answer[1:])
    return answer  # type: ignore[no-any-return]


def _tell(step: Step, answer: Any) -> str:
    about = f"{step.queue.topic}[{step.queue.queue_id}]" if step.queue else step.subject
    said = f"{step.kind.value} {about}"
    if step.kind is StepKind.END:
        said += " commit" if step.is_commit else " abort"
    if isinstance(answer, LogError):
        return f"{said}: {answer.code.value}"
    if isinstance(answer, QueueOffsets):
        return f"{said}: stable {answer.stable}, maximum {answer.maximum}"
    if step.kind is StepKind.GET:
        return f"{said}: {len(answer[0])} messages, next {answer[1]}"
    if step.kind is StepKind.APPEND:
        return f"{said}: at {', '.join(str(one.queue_offset) for one in answer)}"
    return f"{said}: epoch {answer[1]}" if step.kind is StepKind.INIT else said
