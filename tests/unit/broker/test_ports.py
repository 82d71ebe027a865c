"""bridge.broker.ports: free, taken, by whom."""

import os
import socket
from collections.abc import Iterator

import pytest

from bridge.broker.errors import PortTaken
from bridge.broker.ports import check_port, choose_free_port, is_port_free


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", choose_free_port())) as server:
        yield server


def test_listening_port_is_not_free(listener: socket.socket) -> None:
    """What somebody listens on cannot be taken, and can be once that has ended."""
    port = listener.getsockname()[1]
    assert not is_port_free(port)
    listener.close()
    assert is_port_free(port)


def test_taken_port_names_its_holder_and_a_remedy(listener: socket.socket) -> None:
    """The user must know whom to stop."""
    with pytest.raises(PortTaken) as caught:
        check_port(listener.getsockname()[1], "Stop it.")
    assert f"port {listener.getsockname()[1]} is in use by process {os.getpid()}" in str(caught.value)
    assert caught.value.remedy == "Stop it."


def test_chosen_port_is_outside_the_range_of_outgoing_connections() -> None:
    """Else a client that calls a dead broker can connect to itself and keep the port."""
    assert all(1_024 < choose_free_port() < 32_768 for _ in range(20))
