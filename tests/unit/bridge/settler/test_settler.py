"""The settler on the in-memory log: what becomes of half messages, ends and acts."""

from bridge.core.message import Message
from bridge.core.op_message import AnswerCode
from bridge.core.transaction import TransactionState
from tests.support.settler_world import make_settler_world


def test_committed_message_is_published_once_and_its_receipt_tells_where() -> None:
    """A commit puts exactly the prepared record into its topic (L, D, I)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling():
            await world.prepare("a", Message("credits", b"k", b"v", (("h", b"1"), ("h", None))))
            await world.commit("a", request="r1")
            await world.commit("a", request="r2")
            await world.settled()

    world.run(story())
    (record,) = world.memory.read_visible("credits")
    assert (record.key, record.value) == (b"k", b"v")
    assert list(record.headers) == [("h", b"1"), ("h", None), ("transaction-id", world.id_of("a").encode())]
    op = world.op_of("a")
    assert op.transaction.state is TransactionState.COMMITTED
    assert [tuple(r) for r in op.receipts] == [("credits", 0, record.queue_offset)]
    assert [(a.request, a.code) for a in world.read_op().answers] == [("r2", AnswerCode.ALREADY)]


def test_first_recorded_resolution_wins() -> None:
    """A commit after a rollback changes nothing (F)."""
    world = make_settler_world()

    async def story() -> None:
        async with world.settling():
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.rollback("a")
            await world.commit("a", request="late")
            await world.settled()

    world.run(story())
    assert world.memory.visible("credits") == []
    (answer,) = world.read_op().answers
    assert answer.op is not None
    assert answer.op.transaction.state is TransactionState.ROLLED_BACK
