"""How random reads are put together, and how large requests may be."""

from bridge.store.kafka.look_up import NEARBY, split_runs
from bridge.store.kafka.transactions import LARGEST_BATCH_BYTES, find_batch_bytes


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


def test_requests_stay_below_the_smallest_limit() -> None:
    """With a tenth for framing; without a known limit below Kafka's default; never nothing."""
    assert find_batch_bytes(None) == LARGEST_BATCH_BYTES
    assert find_batch_bytes(8 * 1024 * 1024) == LARGEST_BATCH_BYTES
    assert find_batch_bytes(100_000) == 90_000
    assert find_batch_bytes(1) == 1
