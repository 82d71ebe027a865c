"""One bridge for the pages, on virtual time."""

from collections.abc import Iterator

import pytest

from tests.support.whole_bridge import WholeBridge


@pytest.fixture
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBridge]:
    """The whole bridge on the in-memory log."""
    with WholeBridge(tmp_path_factory.mktemp("bridge"), {"orders": 1}) as running:
        yield running
