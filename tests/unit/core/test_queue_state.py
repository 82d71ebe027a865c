"""A queue's state machine against its log: whatever happened, a successor knows what the owner knew."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message
from bridge.core.op_message import AnswerCode, LogStart, LogTopics, OpMessage, Position, encode_op
from bridge.core.position import LowWatermarkConfig
from bridge.core.queue_state import QueueState, RecoveredOps, RecoveredState, WrittenOp, effective_ordering_hash
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.topics import hash_ordering_key
from bridge.core.transaction import COMMITTED, PARKED, PREPARED, ROLLED_BACK, Transaction, make_transaction_id
from bridge.core.transition import LogPosition, Park, Publish, Reply, Rewrite, Schedule, WriteOp
from tests.support.queue_log import QueueLog, ends_of, essences, ops_of

IDS = [make_transaction_id(0, n + 1) for n in range(12)]
TIGHT = LowWatermarkConfig(remember_ended_ms=15, journal_records=6, journal_ms=40, op_messages=5, op_ms=60)


def make_half(n: int, *, keyed: bool, published: bool, count: int) -> tuple[HalfMessage, list[Message]]:
    messages = [Message("t", b"k%d" % (n % 3), b"v")] * count
    single = ("t", -1, None) if count == 1 else ("", -1, None)
    half = HalfMessage(IDS[n], "g", count, 0, *single, None, None, 3, None)
    if keyed or published:
        half = replace(half, idempotency_key=f"key{n}", seen_ms=10**15, request=f"q{n}", is_published=published)
    return half, messages


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("half"), st.integers(0, 11), st.booleans(), st.booleans(), st.integers(1, 2)),
        st.tuples(
            st.just("end"), st.integers(0, 11), st.sampled_from(list(Resolution)), st.sampled_from(list(Source)),
            st.integers(0, 3),
        ),
        st.tuples(st.just("act"), st.integers(0, 11), st.sampled_from(list(Act))),
        st.tuples(st.just("decide"), st.integers(1, 6), st.sets(st.integers(0, 11), max_size=3)),
        st.tuples(st.just("park"), st.integers(0, 11)),
        st.tuples(st.just("unblock")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("wait"), st.integers(1, 30)),
    ),
    max_size=80,
)  # fmt: skip


def play(steps: list[tuple[object, ...]], *, is_settled: bool = True) -> tuple[QueueLog, dict[str, int]]:
    """Plays steps; after every Kafka transaction a successor is compared with the owner. `is_settled`: to the end."""
    log = QueueLog(LowWatermarkConfig(15, 6, 40, 5, 60, max_objects=1))
    state = log.restore()
    used: dict[str, int] = {}
    for step in steps:
        match step:
            case ("half", int(n), bool(keyed), bool(published), int(count)):
                # unkeyed ids are new; a keyed repeat has the same content, and comes while it is remembered
                if used.setdefault(IDS[n], hash((keyed or published, published, count))) != hash(
                    (keyed or published, published, count)
                ):
                    continue
                is_repeat = any(isinstance(r, HalfMessage) and r.transaction_id == IDS[n] for _, r, _ in log.journal)
                is_known = state.is_live(IDS[n]) or IDS[n] in state.ended
                if is_repeat and not ((keyed or published) and is_known and state.s == len(log.journal)):
                    continue
                log.append(*make_half(n, keyed=keyed, published=published, count=count))
            case ("end", int(n), Resolution() as resolution, Source() as source, int(number)):
                log.append(EndRecord(IDS[n], resolution, source, 0, request="r", check_number=number))
            case ("act", int(n), Act() as act):
                log.append(ActRecord(IDS[n], act, "me", "because", 0, "a"))
            case ("decide", int(count), set() as refused):
                log.decide(state, count, {IDS[n] for n in refused})
            case ("park", int(n)):
                log.decide(state, 0, set(), [IDS[n]])
            case ("unblock",):
                log.commit(
                    state, [e for waiting in list(state.blocked_queues.values()) for e in state.unblock(waiting[0])]
                )
            case ("restart",):
                state = log.restore()
            case ("wait", int(ms)):
                log.now_ms += ms
        if step[0] in {"decide", "park", "unblock"}:
            successor = log.restore()
            assert essences(successor) == essences(state)
            assert successor.blocked_queues == state.blocked_queues
            assert state.ended.keys() <= successor.ended.keys()
    if is_settled:
        log.decide(state, len(log.journal), set())
    return log, used


@settings(max_examples=4 * settings().max_examples)
@given(STEPS)
def test_successor_knows_what_the_owner_knew(steps: list[tuple[object, ...]]) -> None:
    """L and O never leave out what is needed, whatever was decided, blocked, parked, put back (S, D)."""
    log, _ = play(steps)
    assert len(log.published) == len(set(log.published)), "published twice"


@settings(max_examples=3 * settings().max_examples)
@given(STEPS)
def test_first_resolution_of_each_transaction_is_what_happened(steps: list[tuple[object, ...]]) -> None:
    """Nobody is published without a COMMIT before any ROLLBACK, and nobody with one is forgotten (L, P, F)."""
    log, _ = play(steps)
    known: set[str] = set()
    first: dict[str, Resolution] = {}
    for _, record, _ in log.journal:
        if isinstance(record, HalfMessage):
            known.add(record.transaction_id)
            if record.is_published:
                first.setdefault(record.transaction_id, Resolution.COMMIT)
        elif isinstance(record, EndRecord) and record.transaction_id in known and record.resolution:
            first.setdefault(record.transaction_id, record.resolution)
    state = log.restore()
    blocked = {i for waiting in state.blocked_queues.values() for i in waiting}
    published = {transaction_id for transaction_id, _ in log.published}
    committed = {i for i, resolution in first.items() if resolution is Resolution.COMMIT}
    assert published | blocked | log.abandoned == committed
    assert len(published) + len(blocked) + len(log.abandoned) == len(committed), "more than one of them"
    acts = [r.transaction_id for _, r, _ in log.journal if isinstance(r, ActRecord) and r.act is Act.ABANDON]
    assert log.abandoned <= set(acts)


def test_carrying_forward_lets_l_move_on() -> None:
    """A transaction that stays PREPARED does not hold the journal's first needed offset for ever."""
    log = QueueLog(TIGHT)
    state = log.restore()
    log.append(*make_half(0, keyed=False, published=False, count=1))
    for _ in range(10):
        log.append(EndRecord(IDS[5], Resolution.COMMIT, Source.PRODUCER, 0))
    log.decide(state, 20, set())
    log.decide(state, 20, set())
    assert log.position.l == log.position.s == 11
    assert IDS[0] in log.restore().rows
    assert len(ends_of(log)) == 10


def test_blocked_commits_of_one_key_keep_the_order_of_their_ends() -> None:
    """A later commit with the ordering key of a blocked one waits behind it (O)."""
    log = QueueLog(TIGHT)
    state = log.restore()
    for n in (0, 3):  # both have key k0
        log.append(*make_half(n, keyed=False, published=False, count=1))
    for n in (3, 0):
        log.append(EndRecord(IDS[n], Resolution.COMMIT, Source.PRODUCER, 0))
    log.decide(state, 9, {IDS[3]})
    assert log.published == []
    assert list(state.blocked_queues.values()) == [[IDS[3], IDS[0]]]
    assert state.live[IDS[0]].reason == "ORDER"


def test_op_message_is_kept_while_its_half_is_read_by_a_successor() -> None:
    """A transaction that ended long ago is not PREPARED again because an older one holds L back (P, F)."""
    log = QueueLog(TIGHT)
    state = log.restore()
    for n in (0, 1):
        log.append(*make_half(n, keyed=False, published=False, count=1))
    log.append(EndRecord(IDS[1], Resolution.COMMIT, Source.PRODUCER, 0))
    log.decide(state, 9, set())
    log.now_ms += 25  # longer than an ended one is remembered, shorter than put back waits
    for n in (2, 3):
        log.append(*make_half(n, keyed=False, published=False, count=1))
        log.decide(state, 9, set())
    assert IDS[1] not in state.ended
    successor = log.restore()
    assert IDS[1] not in successor.live
    assert successor.live.keys() == {IDS[0], IDS[2], IDS[3]}


TIMES_OF = {"g": CheckTimes(interval_ms=40_000)}.__getitem__


def half_of(n: int, *, request: str | None = None, immunity_s: int | None = None) -> HalfMessage:
    return HalfMessage(IDS[n], "g", 1, 0, "t", immunity_s=immunity_s, request=request)


def commit_of(n: int, request: str | None = None) -> EndRecord:
    return EndRecord(IDS[n], Resolution.COMMIT, Source.PRODUCER, 0, "g", request)


def act_of(n: int, act: Act = Act.CHECK) -> ActRecord:
    return ActRecord(IDS[n], act, "me", "why", 0, "a")


def state_with(*numbers: int) -> QueueState:
    """A queue whose journal begins with these half messages, each with the ordering key 7."""
    state = QueueState(TIMES_OF, TIGHT)
    for offset, n in enumerate(numbers):
        state.apply(LogPosition(offset, 100 + offset), half_of(n), 7)
        state.advance(offset + 1, 100 + offset)
    return state


def seal(state: QueueState, *transactions: Transaction) -> Position:
    """Writes these as op messages in one Kafka transaction."""
    position = state.next_position(transactions, "me")
    state.keep_time(state.journal_ms)  # the owner's clock, which goes as journal time goes here
    state.confirm([WrittenOp(t, encode_op(OpMessage(t))) for t in transactions], state.op_start + len(transactions))
    return position


def blocked_pair() -> tuple[QueueState, Transaction, Transaction]:
    """Two commits of one ordering key, the first refused by its topic."""
    state = state_with(0, 1)
    effects = [*state.apply(LogPosition(2, 102), commit_of(0), 0, "REFUSED")]
    effects += state.apply(LogPosition(3, 103), commit_of(1), 0)
    state.advance(4, 103)
    first, second = state.live[IDS[0]], state.live[IDS[1]]
    assert effects == [WriteOp(first), WriteOp(second)]
    assert (first.reason, second.reason, state.blocked_queues) == ("REFUSED", "ORDER", {7: [IDS[0], IDS[1]]})
    return state, first, second


def test_ordering_key_of_a_half_message() -> None:
    """The one recorded; else its own, else its first message's key, else its id, so that it waits for nobody."""
    half = half_of(0)
    assert effective_ordering_hash(replace(half, ordering_key="o", ordering_hash=0), b"k") == 0
    assert effective_ordering_hash(replace(half, ordering_key="o"), b"k") == hash_ordering_key(b"o")
    assert effective_ordering_hash(half, b"k") == hash_ordering_key(b"k")
    assert effective_ordering_hash(half, None) == hash_ordering_key(IDS[0].encode())


def test_empty_queue_begins_at_nothing() -> None:
    """Position 0 of an empty log."""
    state = QueueState(TIMES_OF, TIGHT)
    assert state.next_position([], "me") == Position(0, 0, 0, "me")
    assert (state.s, state.journal_ms, state.op_start) == (0, 0, 0)
    state.confirm([], None)
    assert state.op_start == 0
    state.confirm([], 6)
    assert state.op_start == 7


def test_half_message_is_scheduled_by_its_group_and_its_own_wishes() -> None:
    """Now, and by a successor that reads it again."""
    state = QueueState(TIMES_OF, TIGHT)
    [effect] = state.apply(LogPosition(0, 100), half_of(0, immunity_s=60), 7)
    t = state.live[IDS[0]]
    assert (effect, t.next_due_ms, t.ordering_hash) == (Schedule(t), 60_100, 7)
    assert list(state.prepared()) == [t]
    successor = QueueState.restore(RecoveredState(Position(1, 0, 0, ""), RecoveredOps(), 0, 0, 100), TIMES_OF, TIGHT)
    successor.restore_half(LogPosition(0, 100), half_of(0, immunity_s=60), 7)
    assert successor.live == {IDS[0]: t}


def test_repeat_of_a_half_message_is_answered_with_what_is_known() -> None:
    """Live, just ended, or ended and remembered: then its op message is written again."""
    state = state_with(0)
    already = Reply("a", IDS[0], AnswerCode.ALREADY)
    assert state.apply(LogPosition(1, 101), half_of(0, request="a"), 7) == (already,)
    assert state.apply(LogPosition(1, 101), half_of(0), 7) == ()
    [publish] = state.apply(LogPosition(2, 102), commit_of(0), 0)
    assert isinstance(publish, Publish)
    assert state.apply(LogPosition(3, 103), half_of(0, request="a"), 7) == (already,)
    seal(state, publish.transaction)
    assert state.apply(LogPosition(4, 104), half_of(0, request="a"), 7) == (Rewrite(IDS[0]), already)
    assert state.apply(LogPosition(4, 104), half_of(0), 7) == (Rewrite(IDS[0]),)
    assert state.live == {}


def test_op_message_written_twice_is_forgotten_once() -> None:
    """A repeat has it written again, and its time begins anew each time."""
    state = state_with(0)
    [publish] = state.apply(LogPosition(1, 101), commit_of(0), 0)
    assert isinstance(publish, Publish)
    for _ in range(2):
        seal(state, publish.transaction)
    state.advance(2, 200)
    seal(state)
    assert state.ended == {}


def test_records_about_nobody_are_answered_if_somebody_waits() -> None:
    """An end and an act for an id the queue does not know."""
    state = state_with(0)
    unknown = (Reply("a", IDS[5], AnswerCode.UNKNOWN_TRANSACTION),)
    assert state.apply(LogPosition(1, 101), commit_of(5, "a"), 0) == unknown
    assert state.apply(LogPosition(1, 101), commit_of(5), 0) == ()
    assert state.apply(LogPosition(1, 101), act_of(5), 0) == unknown
    assert state.apply(LogPosition(1, 101), replace(act_of(5), request=None), 0) == ()


def test_records_find_their_transaction_live_just_ended_or_remembered() -> None:
    """Nobody hears that a transaction is unknown which has only ended."""
    state = state_with(0)
    already = (Reply("a", IDS[0], AnswerCode.ALREADY),)
    [publish] = state.apply(LogPosition(2, 102), commit_of(0), 0)
    assert isinstance(publish, Publish)
    for _ in ("just ended", "remembered"):
        assert state.apply(LogPosition(3, 103), commit_of(0, "a"), 0) == already
        assert state.apply(LogPosition(3, 103), act_of(0), 0) == already
        seal(state, publish.transaction)


def test_unknown_is_counted_by_the_interval_of_the_group() -> None:
    """And acts reach the transaction that is live."""
    state = state_with(0)
    unknown = EndRecord(IDS[0], Resolution.UNKNOWN, Source.CHECK, 0, check_number=1)
    effects = state.apply(LogPosition(1, 9_000), unknown, 0)
    t = state.live[IDS[0]]
    assert (t.check_times, t.next_due_ms, effects) == (1, 49_000, (WriteOp(t), Schedule(t)))
    state.apply(LogPosition(2, 20_000), act_of(0), 0)
    assert (state.live[IDS[0]].at, state.live[IDS[0]].next_due_ms) == (2, 20_000)


def test_only_what_is_prepared_is_parked() -> None:
    """Once, at the last record decided; an operator brings it back."""
    state = state_with(0, 1)
    [effect] = state.park(IDS[0], "MAX_LIFE")
    t = state.live[IDS[0]]
    assert effect == Park(t)
    assert (t.state, t.reason, t.at) == (PARKED, "MAX_LIFE", 1)
    assert state.park(IDS[0], "MAX_LIFE") == ()
    assert state.park(IDS[5], "MAX_LIFE") == ()
    assert [t.transaction_id for t in state.prepared()] == [IDS[1]]
    state.apply(LogPosition(2, 102), act_of(0, Act.RESUME), 0)
    assert state.live[IDS[0]].state is PREPARED


def test_blocked_ones_are_tried_again_in_their_order() -> None:
    """Each leaves the chain for the batch; a chain that is empty is gone."""
    state, first, second = blocked_pair()
    for t, rest in ((first, {7: [IDS[1]]}), (second, {})):
        assert state.unblock(t.transaction_id) == (Publish(replace(t, blocked=False, reason=None, at=3)),)
        assert state.blocked_queues == rest
        assert t.transaction_id not in state.live


def test_blocked_one_is_written_again_only_for_another_reason() -> None:
    """Not at every try."""
    state, first, _ = blocked_pair()
    assert state.block_again(IDS[0], "REFUSED") == ()
    assert state.block_again(IDS[0], "GONE") == (WriteOp(replace(first, reason="GONE")),)
    assert state.live[IDS[0]].reason == "GONE"
    assert state.blocked_queues == {7: [IDS[0], IDS[1]]}


def test_blocked_one_keeps_its_place_whatever_is_answered() -> None:
    """An end that changes nothing puts it into the chain no second time (O)."""
    state, first, _ = blocked_pair()
    answers = state.apply(LogPosition(4, 104), replace(commit_of(0, "a"), resolution=Resolution.ROLLBACK), 0)
    assert answers == (Reply("a", IDS[0], AnswerCode.ALREADY),)
    assert state.blocked_queues == {first.ordering_hash: [IDS[0], IDS[1]]}


def test_published_at_once_waits_behind_a_blocked_one_of_its_key() -> None:
    """No commit overtakes another, whether or not it had a half message before (O)."""
    state, _, _ = blocked_pair()
    published = replace(half_of(2, request="a"), idempotency_key="k", seen_ms=200, is_published=True)
    for ordering_hash, is_blocked in ((7, True), (8, False)):
        half = replace(published, transaction_id=IDS[ordering_hash])
        [effect] = state.apply(LogPosition(4 + ordering_hash, 104), half, ordering_hash)
        assert isinstance(effect, WriteOp if is_blocked else Publish)
        assert effect.transaction.reason == ("ORDER" if is_blocked else None)
    assert state.blocked_queues == {7: [IDS[0], IDS[1], IDS[7]]}


def test_position_names_the_log_that_it_speaks_of() -> None:
    """Its topics, the time of the last record that was decided, and where the log begins: so a lost log is seen."""
    state, topics = state_with(0, 1), LogTopics("half-id", "op-id", "parked-id")
    state.log_start = LogStart(1, 2)
    position = state.next_position([], "me", topics)
    assert (position.topics, position.s_ms, position.start) == (topics, 101, LogStart(1, 2))
    successor = QueueState.restore(RecoveredState(position, RecoveredOps(), 0, 0, 101), TIMES_OF, TIGHT)
    assert successor.next_position([], "me", topics)[4:] == position[4:]
    for s, stored_ms, known_ms in ((3, 0, 101), (4, 99, 99)):  # what was decided first has no time of its own
        successor.advance(s, stored_ms)
        assert successor.next_position([], "me", topics).s_ms == known_ms


def test_withholding_leaves_everything_else_as_it_was() -> None:
    """What is no commit, in its order."""
    state = state_with(0)
    others = [Reply("a", IDS[5], AnswerCode.ALREADY), WriteOp(Transaction(IDS[4], "g", 0, 0, 8, ROLLED_BACK))]
    [publish] = state.apply(LogPosition(1, 101), commit_of(0), 0)
    kept = state.defer([others[0], publish, others[1]], lambda t: "REFUSED" if t.ordering_hash == 7 else "SPLIT")
    assert kept == [others[0], WriteOp(state.live[IDS[0]]), others[1]]
    assert state.live[IDS[0]].reason == "REFUSED"


@given(STEPS)
def test_commits_withheld_after_an_abort_stand_as_if_refused_before(steps: list[tuple[object, ...]]) -> None:
    """Whether an obstacle was known in advance, or the Kafka transaction was aborted: the same op messages (A, O)."""
    logs = [play(steps, is_settled=False)[0] for _ in range(2)]
    left = [record for _, record, _ in logs[0].journal[logs[0].position.s :]]
    assume(not any(isinstance(record, ActRecord) for record in left))  # may concern what is blocked only in one of them
    assume(not logs[0].restore().blocked_queues)  # behind these a commit is not tried, so no abort tells its own reason
    for log, is_aborted in zip(logs, (False, True), strict=True):
        log.decide(log.restore(), len(left), set(IDS), is_aborted=is_aborted)
    assert logs[0].op == logs[1].op
    assert logs[0].restore().blocked_queues == logs[1].restore().blocked_queues


def test_old_blocked_ones_are_carried_forward_with_a_copy_of_their_body() -> None:
    """From the age on at which the journal may lose it; younger ones as a state alone."""
    state, first, second = blocked_pair()
    seal(state, first, second)
    state.op_start += 99
    state.advance(5, 100 + TIGHT.op_ms)  # the first is just old enough, the second a millisecond too young
    assert state.carry_forward(9) == [Park(replace(first, requests=())), WriteOp(replace(second, requests=()))]
    assert len(state.carry_forward(1)) == 1
    assert state.blocked_queues == {7: [IDS[0], IDS[1]]}


def test_op_value_is_what_the_op_topic_says_or_would_say() -> None:
    """Of ended ones as written; of live ones as they are; of others nothing."""
    state = state_with(0, 1)
    [publish] = state.apply(LogPosition(2, 102), commit_of(0), 0)
    assert isinstance(publish, Publish)
    seal(state, publish.transaction)
    assert state.get_op_value(IDS[0]) == encode_op(OpMessage(publish.transaction))
    assert state.get_op_value(IDS[1]) == encode_op(OpMessage(state.live[IDS[1]]))
    assert state.get_op_value(IDS[5]) is None


def test_successor_reads_op_messages_in_any_order() -> None:
    """Chains follow the ends, not the op messages; O stays at the first op message that is needed."""
    state, first, second = blocked_pair()
    first, second = (replace(t, next_due_ms=0) for t in (first, second))  # nothing is due any more
    ended = Transaction(IDS[2], "g", 0, 0, 0, COMMITTED, by="check", ended_ms=95)
    ops = ops_of((40, second), (45, ended), (50, first))
    successor = QueueState.restore(RecoveredState(Position(4, 4, 40, ""), ops, 60, 70, 103), TIMES_OF, TIGHT)
    assert successor.live == {IDS[0]: first, IDS[1]: second}
    assert successor.blocked_queues == state.blocked_queues
    assert successor.ended == {IDS[2]: encode_op(OpMessage(ended))}
    assert successor.next_position([], "me") == Position(4, 4, 40, "me")
    seal(successor, *[e.transaction for e in successor.unblock(IDS[0]) if isinstance(e, Publish)])
    seal(successor, *[e.transaction for e in successor.unblock(IDS[1]) if isinstance(e, Publish)])
    assert successor.next_position([], "me").o == 45
    successor.advance(5, 95 + TIGHT.remember_ended_ms)
    seal(successor)
    assert IDS[2] in successor.ended
    successor.advance(6, 96 + TIGHT.remember_ended_ms)
    seal(successor)
    assert IDS[2] not in successor.ended


def test_journal_time_never_goes_back() -> None:
    """By records or by what has been read through, whichever is later."""
    state = state_with(0)
    for read_through_ms, journal_ms in ((90, 100), (150, 150), (140, 150)):
        state.pass_time(read_through_ms)
        assert state.journal_ms == journal_ms
    state.advance(2, 120)
    assert state.journal_ms == 150


def test_abandoned_one_frees_its_ordering_key() -> None:
    """The next in order comes to the front; the last one takes the chain with it. Nothing is left to be tried."""
    state, first, second = blocked_pair()
    for n, t, rest in ((0, first, {7: [IDS[1]]}), (1, second, {})):
        given_up = replace(t, blocked=False, abandoned=True, at=5 + n, requests=("a",))
        assert state.apply(LogPosition(5 + n, 105 + n), act_of(n, Act.ABANDON), 0) == (WriteOp(given_up),)
        assert state.blocked_queues == rest
        assert t.transaction_id not in state.live
        seal(state, given_up)
        assert state.get_op_value(IDS[n]) == encode_op(OpMessage(given_up))


def test_commit_behind_an_abandoned_one_is_published_in_the_same_batch() -> None:
    """The journal's order decides: the key was free when it was committed."""
    state, _, _ = blocked_pair()
    state.apply(LogPosition(4, 104), half_of(2), 7)
    effects = [e for n in (0, 1) for e in state.apply(LogPosition(5 + n, 105 + n), act_of(n, Act.ABANDON), 0)]
    effects += state.apply(LogPosition(7, 107), commit_of(2), 0)
    assert [type(effect) for effect in effects] == [WriteOp, WriteOp, Publish]


def test_commit_that_is_given_up_in_the_same_batch_was_blocked_first() -> None:
    """Records take effect one after the other: whoever was committed before the act waits for the next try."""
    state = state_with(0, 1)
    effects = [*state.apply(LogPosition(2, 102), commit_of(0), 0, "REFUSED")]
    effects += state.apply(LogPosition(3, 103), commit_of(1), 0)
    effects += state.apply(LogPosition(4, 104), act_of(0, Act.ABANDON), 0)
    last = {e.transaction.transaction_id: e.transaction for e in effects if isinstance(e, WriteOp)}
    assert (last[IDS[0]].abandoned, last[IDS[0]].reason, last[IDS[1]].reason) == (True, "REFUSED", "ORDER")
    assert state.blocked_queues == {7: [IDS[1]]}


def test_successor_does_not_hold_what_was_abandoned() -> None:
    """Its op message is its end: neither live nor in a chain, and a repeated act hears so."""
    _, first, second = blocked_pair()
    given_up = replace(first, blocked=False, abandoned=True, at=5)
    ops = ops_of((40, given_up), (41, second))
    successor = QueueState.restore(RecoveredState(Position(6, 6, 40, ""), ops, 60, 70, 105), TIMES_OF, TIGHT)
    assert successor.live == {IDS[1]: replace(second, next_due_ms=0)}
    assert successor.blocked_queues == {7: [IDS[1]]}
    [reply] = successor.apply(LogPosition(6, 106), act_of(0, Act.ABANDON), 0)
    assert reply == Reply("a", IDS[0], AnswerCode.ALREADY)
