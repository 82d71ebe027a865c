"""How random reads are put together."""

from bridge.store.kafka.consumer import NEARBY, split_runs


def test_near_offsets_are_read_in_one_go() -> None:
    """A gap up to the bound is read over, a larger one is jumped over."""
    offsets = [0, 1, NEARBY + 1, 2 * NEARBY + 2, 2 * NEARBY + 3, 9_999_999]
    assert [list(run) for run in split_runs(offsets)] == [
        [0, 1, NEARBY + 1],
        [2 * NEARBY + 2, 2 * NEARBY + 3],
        [9_999_999],
    ]


def test_single_offset_is_a_single_run() -> None:
    """The usual case."""
    assert [list(run) for run in split_runs([5])] == [[5]]
