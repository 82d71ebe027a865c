"""Pauses that grow."""

from bridge.core.check_rules import Backoff


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_success() -> None:
    """What fails for long is asked seldom, and once it works it is asked soon again."""
    backoff = Backoff(100, 500)
    assert backoff.pause_ms == 0
    assert [backoff.next_ms() for _ in range(5)] == [100, 200, 400, 500, 500]
    backoff.reset()
    assert (backoff.pause_ms, backoff.next_ms()) == (0, 100)
