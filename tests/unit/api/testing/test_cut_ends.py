"""api.testing.stand: producers' ends are cut off, and nothing else."""

from api.testing.stand import CutEnds
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world


@in_world(make_service_world)
async def test_answers_to_checks_get_through(world: ServiceWorld) -> None:
    """In one request with ends, too: each call gets its own answer, in order."""
    async with world.settlers.settling(), world.serving() as process:
        ends = CutEnds(process.transactions)
        first, second, third = await ends.prepare([world.call(b"1"), world.call(b"2"), world.call(b"3")])
        assert isinstance(first, Prepared)
        assert isinstance(second, Prepared)
        assert isinstance(third, Prepared)
        calls = [
            EndCall(first.transaction_id, Resolution.COMMIT),
            EndCall(second.transaction_id, Resolution.COMMIT, check_number=1),
            EndCall(third.transaction_id, Resolution.ROLLBACK),
        ]
        ends.cut()
        told = await ends.end(calls)
        assert ends.mend() == [first.transaction_id, third.transaction_id]
        assert [isinstance(answer, Refused) and answer.code for answer in told] == [
            RefusalCode.UNAVAILABLE, False, RefusalCode.UNAVAILABLE,
        ]  # fmt: skip
        (again,) = await ends.end(calls[:1])
        assert isinstance(again, TransactionView)
        assert again.state is TransactionState.COMMITTED
