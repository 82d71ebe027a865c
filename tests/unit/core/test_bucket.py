"""So many a second, on average."""

import math

from hypothesis import given
from hypothesis import strategies as st

from bridge.turns import Bucket


@given(
    st.floats(0.1, 1_000), st.floats(1, 100), st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 50)), max_size=30)
)
def test_no_more_is_taken_than_flows_in(rate: float, most: float, steps: list[tuple[int, float]]) -> None:
    """Apart from what it holds, and the debt that the last one left; who waits as he is told may go on."""
    now_ms, taken, largest = 0, 0.0, 0.0
    bucket = Bucket(rate, most, now_ms)
    for pause_ms, amount in steps:
        now_ms += pause_ms
        if wait_ms := bucket.find_wait_ms(now_ms):
            now_ms += math.ceil(wait_ms) + 1
            assert bucket.find_wait_ms(now_ms) == 0
        bucket.take(amount)
        taken, largest = taken + amount, max(largest, amount)
        assert taken <= rate * now_ms / 1000 + most + largest + 1e-3
