"""What stands behind the API in the attacks on its connections."""

import pytest

from tests.support.api_fakes import FakeTransactions


@pytest.fixture
def fake() -> FakeTransactions:
    """In memory."""
    return FakeTransactions()
