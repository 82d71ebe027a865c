"""What an error carries besides its kind."""

from bridge.core.errors import BatchAborted


def test_aborted_batch_names_the_destination_if_it_is_known() -> None:
    """The settler splits that one off; people read both in one line."""
    known, unknown = BatchAborted("too large", "orders"), BatchAborted("too large")
    assert (known.reason, known.topic, str(known)) == ("too large", "orders", "orders: too large")
    assert (unknown.reason, unknown.topic, str(unknown)) == ("too large", None, "too large")
