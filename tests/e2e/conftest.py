"""One bridge for all tests of the public contract."""

from collections.abc import Iterator

import pytest

from tests.support.running_service import RunningService, running_service


@pytest.fixture(scope="session")
def service(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Two API processes, a strict one and an engine, on SQLite."""
    with running_service(kafka, tmp_path_factory.mktemp("service")) as running:
        yield running
