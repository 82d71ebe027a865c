"""bridge.broker.server_properties: the broker's configuration."""

from pathlib import Path

from bridge.broker.server_properties import BrokerLayout, make_java_options, make_properties


def lines_of(layout: BrokerLayout) -> list[str]:
    return make_properties(layout, layout.log_folder).splitlines()


def test_broker_listens_on_loopback_only() -> None:
    """There is no authentication, so nothing outside this machine may connect."""
    lines = lines_of(BrokerLayout(Path("/d"), 9092, 9093))
    assert "listeners=P://127.0.0.1:9092,C://127.0.0.1:9093" in lines
    assert "controller.quorum.voters=1@127.0.0.1:9093" in lines
    assert "log.dirs=log" in lines


def test_typing_error_in_a_topic_does_not_make_a_topic() -> None:
    """Topics are made on purpose."""
    assert "auto.create.topics.enable=false" in lines_of(BrokerLayout(Path("/d"), 1, 2))


def test_own_settings_overrule_and_are_escaped() -> None:
    """Each name once; a backslash is one for Java too."""
    lines = lines_of(BrokerLayout(Path("/d"), 1, 2, {"num.io.threads": "7", "x": "a\\b"}))
    assert [line for line in lines if line.startswith("num.io.threads")] == ["num.io.threads=7"]
    assert "x=a\\\\b" in lines


def test_first_heap_is_never_above_the_largest() -> None:
    """Java refuses that."""
    assert make_java_options(48)[:2] == ("-Xms48m", "-Xmx48m")
    assert make_java_options(384)[:2] == ("-Xms64m", "-Xmx384m")
