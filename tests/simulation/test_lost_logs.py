"""Journal and op topic lost at some moment of a schedule, with all its other faults, and given up by an operator."""

import pytest

from tests.simulation.lost_logs import simulate_loss


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_is_given_up_costs_nobody_else_anything(first: int) -> None:
    """Nothing is visible twice, what was told stays so, and all other promises hold for all the rest."""
    found = {seed: run.violations for seed in range(first, first + 20) if (run := simulate_loss(seed)).violations}
    assert found == {}


@pytest.mark.parametrize("seed", [139, 338, 446, 514, 571, 635, 1055, 1306, 1630, 1839, 1968, 2520, 2526, 2571])
def test_schedule_that_broke_a_promise_once_keeps_all(seed: int) -> None:
    """A halt stored after the act, a position whose markers are late, an abandoned commit, a take-over in between."""
    assert simulate_loss(seed).violations == []


def test_losses_take_place() -> None:
    """Of both topics, with transactions that are given up by them."""
    runs = [simulate_loss(seed) for seed in range(8)]
    assert {name for run in runs for name in run.struck if name.endswith(" lost")} == {"half lost", "op lost"}
    given_up = [what for run in runs for _, who, what in run.story.lines if who == "operator" and "given up" in what]
    assert len(given_up) == len(runs)
    assert any(not what.endswith(" 0") for what in given_up)
