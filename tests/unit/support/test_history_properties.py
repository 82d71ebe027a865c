"""The history checker on generated histories: a correct one has no finding, and no single corruption escapes it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.history_script import tell
from tests.support.history_strategies import corruptions, scripts

_PENDING = " | allow:pend"


@settings(max_examples=100)
@given(scripts())
def test_correct_histories_have_no_finding(script: str) -> None:
    """A false alarm in a million transactions would be one in every run."""
    verdict = tell(script + _PENDING).judge()
    assert verdict.violations == []


@settings(max_examples=150)
@given(scripts(), st.data())
def test_each_single_corruption_is_named(script: str, data: st.DataObject) -> None:
    """Whatever one thing is changed, the promise that it breaks is among the findings."""
    told = tell(script + _PENDING)
    possible = list(corruptions(told))
    name, letter, corrupt = data.draw(st.sampled_from(possible), label="corruption") if possible else ("", "", None)
    if corrupt is None:
        return
    corrupt(told)
    verdict = told.judge()
    assert letter in verdict.promises(), f"{name} must break {letter}: {list(map(str, verdict.violations))}"


def test_every_corruption_of_one_rich_history_is_named() -> None:
    """All of them on a history that has something of everything."""
    script = (
        "a.p:mkey=M b.p:mkey=M a.c b.c d.pub:count=2 e.p:key=K~ e.p:key=K +6000 e.k:COMMIT f.p f.r? f.get g.p g.park "
        "h.p:order=O,ts=5 h.abort h.c h.get i.p j.p~ +6000 j.k:ROLLBACK block k.p k.c well k.unblock foreign consume"
    )
    names = [name for name, _, _ in corruptions(tell(script + _PENDING))]
    escaped = []
    for number, name in enumerate(names):
        told = tell(script + _PENDING)
        _, letter, corrupt = list(corruptions(told))[number]
        corrupt(told)
        if letter not in told.judge().promises():
            escaped.append((number, name, letter))
    assert escaped == []
    assert set(names) >= {"record dropped", "two of one key swapped", "aborted record consumed", "parked message gone"}
