"""What stands behind the API in the attacks on its connections."""

from pathlib import Path

import pytest

from tests.support import live_server
from tests.support.api_fakes import FakeTransactions
from tests.support.authority import Authority


@pytest.fixture
def fake() -> FakeTransactions:
    """In memory."""
    return FakeTransactions()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs what a test needs."""
    return Authority(tmp_path)


@pytest.fixture(params=["in clear", "secured"])
def each_way(request: pytest.FixtureRequest, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers, and their clients, speak TLS the second time."""
    if request.param == "secured":
        monkeypatch.setattr(live_server, "usual_authority", authority)
