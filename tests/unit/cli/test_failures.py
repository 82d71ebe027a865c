"""api.cli.output: exit codes scripts may rely on."""

import pytest

from api.cli.output import CommandFailed, Exit, explain
from bridge.broker.ports import JarsUnavailable, PortTaken
from bridge.core.errors import (
    BatchOutcomeUnknown,
    ConfigError,
    QueueHalted,
    SqlUnavailable,
    StoreTimeout,
    StoreUnavailable,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PortTaken("port 1 is in use", "Choose another."), Exit.FAILED),
        (JarsUnavailable("no network", "Check it."), Exit.UNREACHABLE),
        (ConfigError("unknown setting"), Exit.USAGE),
        (StoreUnavailable("down"), Exit.UNREACHABLE),
        (StoreTimeout("slow"), Exit.UNREACHABLE),
        (SqlUnavailable("down"), Exit.UNREACHABLE),
        (QueueHalted("gap"), Exit.FAILED),
    ],
)
def test_expected_errors_have_their_exit_code(error: Exception, code: Exit) -> None:
    """Each family of errors ends a command with one code and its own reason."""
    failure = explain(error)
    assert failure is not None
    assert failure.code is code
    assert str(error) in failure.reason


def test_silence_of_kafka_is_not_told_as_its_refusal() -> None:
    """Nobody knows whether it was done; a refusal is told as one, with what it needs."""
    silence = explain(BatchOutcomeUnknown("not written in time"))
    assert silence is not None
    assert silence.code is Exit.UNREACHABLE
    assert silence.reason == "whether Kafka has taken it is not known: not written in time"
    assert silence.remedy.startswith("Run the command again")
    refusal = explain(BatchOutcomeUnknown("TOPIC_AUTHORIZATION_FAILED"))
    assert refusal is not None
    assert (refusal.code, refusal.reason) == (Exit.FAILED, "Kafka refuses: TOPIC_AUTHORIZATION_FAILED")


def test_remedy_of_an_error_is_kept() -> None:
    """What to do stands beside what happened."""
    failure = explain(PortTaken("port 1 is in use", "Choose another."))
    assert failure is not None
    assert failure.remedy == "Choose another."


def test_error_inside_groups_is_found() -> None:
    """Task groups wrap what really happened, some of them twice."""
    wrapped = ExceptionGroup("tasks", [ExceptionGroup("inner", [CommandFailed(Exit.CONFLICT, "no")])])
    failure = explain(wrapped)
    assert failure is not None
    assert failure.code is Exit.CONFLICT


def test_surprise_is_not_explained_away() -> None:
    """A bug must be seen as one."""
    assert explain(ZeroDivisionError()) is None
