"""bridge.core.position: what witnesses have seen of an op topic, where its position says nothing of it."""

import pytest

from bridge.core.errors import HaltKind
from bridge.core.op_message import LogStart, LogTopics, Position
from bridge.core.position import MIGRATE_OWNER, LogFacts, Span, Witness, find_fault

LOG = LogTopics("journal", "op", "parked")
START = LogStart(0, 0)


def judge(op_end: int, witness: Witness, owner: str = "settler") -> HaltKind | None:
    position = Position(5, 5, 0, owner, LOG, 1, START)
    return find_fault(position, LogFacts(LOG, Span(0, 9), Span(0, op_end), 1, (witness,)))


@pytest.mark.parametrize(
    ("op_end", "witness", "expected"),
    [
        (20, Witness(5, "journal", "op", START, 20), None),
        (19, Witness(5, "journal", "op", START, 20), HaltKind.OP_LOST),
        (19, Witness(5, "journal", "op", None, 20), HaltKind.OP_LOST),
        (19, Witness(5, "journal", "another op", START, 20), None),
        (19, Witness(5, "journal", "op", LogStart(1, 1), 20), None),
    ],
)
def test_op_topic_that_ends_before_what_was_seen_is_lost(
    op_end: int, witness: Witness, expected: HaltKind | None
) -> None:
    """S need not have moved with the op messages that are gone; who saw another log or beginning saw nothing (D)."""
    assert judge(op_end, witness) is expected


def test_position_of_an_operators_act_outweighs_what_was_seen_before() -> None:
    """It gave up just that, and witnesses learn it a moment later."""
    assert judge(1, Witness(9, "journal", "op", None, 20), MIGRATE_OWNER) is None
