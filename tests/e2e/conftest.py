"""A bridge for the tests of the public contract."""

from collections.abc import Iterator

import pytest

from tests.support.running_service import RunningService, running_service


@pytest.fixture(scope="module")
def service(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Two API processes, a strict one and an engine, on SQLite. Not for longer: resting, they cost processors too."""
    with running_service(kafka, tmp_path_factory.mktemp("service")) as running:
        yield running
