"""Windows in a queue's change of owner, staged on the real broker with a proxy that holds requests back."""

from collections.abc import Iterator

import pytest

from tests.support.bridge_process import Bridge, BridgeProcess, wait_until
from tests.support.kafka_proxy import ADD_PARTITIONS_TO_TXN, INIT_PRODUCER_ID, ProxiedBroker, proxied_broker
from tests.support.window_stage import TAKE_OVER_S, Stage, bridge_front, take_overs, wait_for_take_over

REFUSED = {47, 90}  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
_TOPIC_NAMES = str.maketrans("[]", "..")


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedBroker]:
    """A broker with a proxy before it."""
    with proxied_broker({"group.min.session.timeout.ms": "1000"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def front(kafka: ProxiedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bridge, BridgeProcess]]:
    """One bridge and its api process for all windows."""
    with bridge_front(kafka, tmp_path_factory.mktemp("windows")) as running:
        yield running


@pytest.fixture
def stage(kafka: ProxiedBroker, front: tuple[Bridge, BridgeProcess], request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Without a settler yet."""
    made = Stage(kafka, *front, request.node.name.translate(_TOPIC_NAMES))
    try:
        yield made
    finally:
        made.close()


def test_owner_frozen_before_the_end_of_its_kafka_transaction(stage: Stage) -> None:
    """All is written, EndTxn not sent: another takes over and decides, then the owner wakes up (D, P)."""
    owner = stage.start_owner()
    wait_for_take_over(owner)
    successor = stage.start_successor()
    closing = stage.hold_closing()
    first = stage.commit("first")
    closing.wait_caught()
    owner.pause()
    closing.open()  # written, and the answer waits for the owner
    wait_for_take_over(successor)
    assert first.finish()["state"] == "COMMITTED"
    owner.resume()
    wait_until(lambda: '"queue_let_go"' in owner.log.read_text(), 40, "the zombie lets go")
    assert stage.commit("second").finish()["state"] == "COMMITTED"
    assert stage.visible() == ["first", "second"]
    assert stage.final_ops(first.transaction_id) == 1


def test_end_of_a_kafka_transaction_arrives_after_a_take_over(stage: Stage) -> None:
    """EndTxn is on the wire when its sender freezes, and arrives when another has decided: refused (D, P)."""
    owner = stage.start_owner()
    wait_for_take_over(owner)
    successor = stage.start_successor()
    closing = stage.hold_closing()
    first = stage.commit("first")
    end = stage.catch_end(closing)
    owner.pause()
    end.cut()
    wait_for_take_over(successor)
    assert first.finish()["state"] == "COMMITTED"
    second = stage.commit("second")
    assert stage.proxy.deliver(end.wait_caught()) in REFUSED
    owner.resume()
    assert second.finish()["state"] == "COMMITTED"
    assert stage.visible() == ["first", "second"]
    assert stage.final_ops(first.transaction_id) == stage.final_ops(second.transaction_id) == 1


@pytest.mark.parametrize("age_s", [0, 5], ids=["new", "old"])
def test_end_of_a_kafka_transaction_arrives_in_the_next_one(stage: Stage, age_s: int) -> None:
    """EndTxn is lost on the way; its sender goes on, and is in the middle of the same producer's next Kafka
    transaction when it arrives after all (KAFKA-17754): refused, for the queue was taken over anew (D, P).
    On a connection older than its back-off the client may connect, and so repeat EndTxn, at once."""
    owner = stage.start_owner()
    wait_for_take_over(owner)
    wait_until(lambda: stage.proxy.youngest_s > age_s, name="old connections")
    closing = stage.hold_closing()
    first = stage.commit("0")
    end = stage.catch_end(closing)
    end.cut()
    assert first.finish()["state"] == "COMMITTED"
    late = end.wait_caught()
    middle = stage.hold_closing(late.client_id)
    following = [stage.commit(f"{number}") for number in range(1, 4)]
    middle.wait_caught()
    code = stage.proxy.deliver(late)
    middle.open()
    assert [each.finish()["state"] for each in following] == ["COMMITTED"] * 3
    assert sorted(stage.visible()) == ["0", "1", "2", "3"]
    assert code in REFUSED
    assert [stage.final_ops(each.transaction_id) for each in [first, *following]] == [1] * 4


def test_owner_frozen_between_the_two_inits_of_its_take_over(stage: Stage) -> None:
    """It has fenced one producer of the queue and not the other; another takes over and decides; its second init
    arrives late and fences the rightful owner: that costs a take-over, nothing else (D, L, T)."""
    first = stage.commit("first")  # nobody is there to decide yet
    init = stage.proxy.hold(INIT_PRODUCER_ID, client=stage.writer + "1")
    owner = stage.start_owner()
    init.wait_caught()
    successor = stage.start_successor()
    owner.pause()
    wait_for_take_over(successor)
    assert first.finish()["state"] == "COMMITTED"
    owner.resume()
    init.open()
    values = [f"{number}" for number in range(4)]
    assert [stage.commit(value).finish()["state"] for value in values] == ["COMMITTED"] * 4
    wait_for_take_over(successor, 2)
    assert stage.visible() == ["first", *values]
    assert stage.final_ops(first.transaction_id) == 1


def test_owner_frozen_after_reading_back(stage: Stage) -> None:
    """It has fenced and read the position, its first Kafka transaction is on the wire; another takes over and
    decides; of two settlers in take-over only one can ever commit (D, F)."""
    first = stage.commit("first")
    begin = stage.proxy.hold(ADD_PARTITIONS_TO_TXN, client=stage.writer + "0")
    owner = stage.start_owner()
    begin.wait_caught()
    owner.pause()
    successor = stage.start_successor()
    wait_for_take_over(successor)
    assert first.finish()["state"] == "COMMITTED"
    begin.open()
    owner.resume()
    assert stage.commit("second").finish()["state"] == "COMMITTED"
    wait_until(lambda: '"queue_let_go"' in owner.log.read_text(), 40, "the zombie lets go")
    assert stage.commit("third").finish()["state"] == "COMMITTED"
    assert stage.visible() == ["first", "second", "third"]
    assert stage.final_ops(first.transaction_id) == 1
    assert take_overs(owner) == 0


def test_owner_whose_connections_carry_nothing_any_more(stage: Stage) -> None:
    """They stay open, new ones work: its clients are replaced, commits go on, the queue is taken over a few times,
    and all is visible once (A, T)."""
    owner = stage.start_owner()
    wait_for_take_over(owner)
    assert stage.commit("first").finish()["state"] == "COMMITTED"
    before = take_overs(owner)
    stage.proxy.deafen()
    assert stage.commit("second").finish(3 * TAKE_OVER_S)["state"] == "COMMITTED"
    assert stage.commit("third").finish()["state"] == "COMMITTED"
    assert stage.visible() == ["first", "second", "third"]
    assert take_overs(owner) - before < 8
