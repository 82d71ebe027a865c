"""A queue's state machine against its log: whatever happened, a successor knows what the owner knew."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.horizon import HorizonConfig
from bridge.core.message import Message
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import TransactionState
from bridge.core.transaction_id import make_transaction_id
from tests.support.queue_log import QueueLog, ends_of, essence

IDS = [make_transaction_id(0, n + 1) for n in range(12)]
TIGHT = HorizonConfig(remember_ended_ms=15, journal_records=6, journal_ms=40, op_messages=5, op_ms=60)


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


def play(steps: list[tuple[object, ...]]) -> tuple[QueueLog, dict[str, int]]:
    """Plays steps; after every Kafka transaction a successor is compared with the owner."""
    log = QueueLog(TIGHT)
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
                is_known = IDS[n] in state.live or IDS[n] in state.ended
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
                log.commit(state, [e for chain in list(state.chains.values()) for e in state.unblock(chain[0])])
            case ("restart",):
                state = log.restore()
            case ("wait", int(ms)):
                log.now_ms += ms
        if step[0] in {"decide", "park", "unblock"}:
            successor = log.restore()
            assert {essence(t) for t in successor.live.values()} == {essence(t) for t in state.live.values()}
            assert successor.chains == state.chains
            assert state.ended.keys() <= successor.ended.keys()
    log.decide(state, len(log.journal), set())
    return log, used


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(STEPS)
def test_successor_knows_what_the_owner_knew(steps: list[tuple[object, ...]]) -> None:
    """L and O never leave out what is needed, whatever was decided, blocked, parked, put back (S, D)."""
    log, _ = play(steps)
    assert len(log.published) == len(set(log.published)), "published twice"


@settings(max_examples=3 * settings().max_examples, deadline=None)
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
    blocked = {i for chain in state.chains.values() for i in chain}
    published = {transaction_id for transaction_id, _ in log.published}
    assert published | blocked == {i for i, resolution in first.items() if resolution is Resolution.COMMIT}
    assert not published & blocked


def test_put_back_lets_l_move_on() -> None:
    """A transaction that stays PREPARED does not hold the journal's first needed offset for ever."""
    log = QueueLog(TIGHT)
    state = log.restore()
    log.append(*make_half(0, keyed=False, published=False, count=1))
    for _ in range(10):
        log.append(EndRecord(IDS[5], Resolution.COMMIT, Source.PRODUCER, 0))
    log.decide(state, 20, set())
    log.decide(state, 20, set())
    assert log.position.l == log.position.s == 11
    assert log.restore().live[IDS[0]].state is TransactionState.PREPARED
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
    assert list(state.chains.values()) == [[IDS[3], IDS[0]]]
    assert state.live[IDS[0]].why == "ORDER"


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
