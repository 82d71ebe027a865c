"""What an error carries besides its kind."""

from bridge.core.errors import BatchAborted, HaltKind, QueueHalted


def test_aborted_batch_names_the_destination_if_it_is_known() -> None:
    """The settler splits that one off; people read both in one line."""
    known, unknown = BatchAborted("too large", "orders"), BatchAborted("too large")
    assert (known.reason, known.topic, str(known)) == ("too large", "orders", "orders: too large")
    assert (unknown.reason, unknown.topic, str(unknown)) == ("too large", None, "too large")


def test_halted_queue_says_why() -> None:
    """In words for the operator; with what he may give up, if there is anything."""
    for kind in (None, HaltKind.OP_LOST):
        halted = QueueHalted("the op topic ends before 7", kind)
        assert (str(halted), halted.kind) == ("the op topic ends before 7", kind)
