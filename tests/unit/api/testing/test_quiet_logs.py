"""api.testing.quiet_logs: the bridge's log goes where pytest looks, and the application's own stays as it is."""

from collections.abc import Iterator

import pytest
import structlog

from api.testing.quiet_logs import quiet_logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Settings of structlog are those of the process."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


def test_log_goes_to_the_standard_library(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is printed into a test that looks at what was printed; afterwards all is as before."""
    with caplog.at_level("INFO"), quiet_logs():
        structlog.get_logger().info("queue_gained", queue=0)
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in caplog.records] == ["event='queue_gained' queue=0 level='info'"]
    assert not structlog.is_configured()


def test_application_that_logs_with_structlog_keeps_its_settings() -> None:
    """Also where it is configured while a bridge runs."""
    processors = [structlog.processors.JSONRenderer()]
    with quiet_logs():
        structlog.configure(processors=processors)
    assert structlog.get_config()["processors"] is processors
    with quiet_logs():
        assert structlog.get_config()["processors"] is processors
    assert structlog.get_config()["processors"] is processors
