"""Two settlers on one queue, in every order of their store calls."""

from collections.abc import Hashable

import pytest

from bridge.core.message import Message
from bridge.core.record import Resolution
from bridge.store.memory.coordinators import ProducerRegistration
from tests.simulation.interleavings import SETTINGS, describe, explore, tell
from tests.simulation.ownership_race import Choice, Contest
from tests.simulation.stepped_log import Deal, Setting

pytestmark = pytest.mark.usefixtures("quiet")
_ALONE = Setting("one", (Deal((Message("orders", b"k", b"v"),), Resolution.COMMIT),), 1, can_crash=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name.replace(" ", "-"))
def test_no_interleaving_breaks_a_promise(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever two owners do at once, and wherever one of them dies: L, P, D, F, S, T."""
    tally = explore(setting)
    assert tally.broken is None, describe(tally)
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201 - the count is the evidence


def test_exploration_of_one_setting_is_always_the_same() -> None:
    """It draws nothing."""
    first, again = explore(_ALONE), explore(_ALONE)
    assert (first.interleavings, first.states, first.steps) == (again.interleavings, again.states, again.steps)
    assert first.interleavings > 1_000


def test_pruning_loses_no_end() -> None:
    """With every refused call and every late read in every order the log ends in the same ways."""
    ends, states = _find_ends(Contest(_ALONE))
    all_ends, all_states = _find_ends(Contest(_ALONE, is_pruned=False))
    assert ends == all_ends
    assert len(ends) > 50
    assert all_states > 4 * states


def test_path_is_told_again_step_by_step() -> None:
    """B is frozen inside its take-over while A does everything: B is refused, and takes over anew."""
    path = [Choice.parse(name) for name in ["B", *["A"] * 16, *["B"] * 12]]
    story, violations = tell(SETTINGS[0], path)
    lines = story.splitlines()
    assert lines[:2] == ["B INIT outbox-bridge-0-0: epoch 0", "A INIT outbox-bridge-0-0: epoch 1"]
    assert "B ADD_QUEUES outbox-bridge-0-0: PRODUCER_FENCED" in lines
    assert lines[-1] == "B END outbox-bridge-0-0 commit"
    assert violations == []


def test_broken_promise_is_told_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is ever refused: two owners publish, and the path that a reader gets shows it again."""
    monkeypatch.setattr(ProducerRegistration, "epoch", property(lambda _: 0, lambda *_: None))
    tally = explore(_ALONE)
    assert tally.broken is not None
    told = describe(tally)
    assert "broken" in told
    path = [Choice.parse(text) for text in told.splitlines()[-1].removeprefix("path: ").split(",")]
    assert [str(v) for v in tell(_ALONE, path)[1]] == [str(v) for v in tally.violations]


def _find_ends(contest: Contest) -> tuple[set[Hashable], int]:
    """The logs in which nothing is left to happen, and the number of states on the way there."""
    met, left, ends = {contest.start}, [contest.start], set()
    while left:
        state = left.pop()
        moves = contest.moves(state)
        if not moves:
            ends.add(contest.world.describe(state.log))
        behind = {contest.take(state, choice)[0] for choice in moves} - met
        met |= behind
        left += behind
    return ends, len(met)
