"""When a client has been silent for too long."""

from bridge.store.kafka.client import Silence


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.s = 100.0
        self.silence = Silence(15, lambda: self.s)


def test_silence_lasts_from_the_beginning_of_the_first_call_without_an_answer() -> None:
    """Three calls of five seconds each."""
    now = Now()
    found = []
    for _ in range(3):
        began = now.s
        now.s += 5
        found.append(now.silence.go_on("a", began))
    assert found == [False, False, True]


def test_answer_ends_the_silence_about_its_own_thing_only() -> None:
    """One broker may answer while another does not."""
    now = Now()
    assert not now.silence.go_on("a")
    assert not now.silence.go_on("b")
    now.s += 10
    now.silence.end("a")
    now.s += 5
    assert not now.silence.go_on("a")
    assert now.silence.go_on("b")


def test_new_client_has_as_long_as_the_old_one() -> None:
    """Else each failure after the first replacement would be another one."""
    now = Now()
    now.silence.go_on("a")
    now.s += 15
    assert now.silence.go_on("a")
    now.s += 1
    assert not now.silence.go_on("a")
    now.s += 14.9
    assert not now.silence.go_on("a")
    now.s += 0.1
    assert now.silence.go_on("a")
