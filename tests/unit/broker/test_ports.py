"""bridge.broker.ports: free, taken, by whom."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bridge.broker import ports
from bridge.broker.ports import PortTaken, check_port, choose_free_port, is_port_free


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


CHOOSE_FROM_ONE = """
from bridge.broker import ports
ports._FREE_FROM, ports._FREE_TO = {port}, {port} + 1
print(ports.choose_free_port())
"""
LISTEN = """
import socket
with socket.create_server(("127.0.0.1", {port})):
    with socket.create_connection(("127.0.0.1", {port})):
        print("answered")
"""


def run(program: str, port: int) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-c", program.format(port=port))
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hold a port for another process")
def test_chosen_port_is_held_until_a_server_listens_and_after_it_ended() -> None:
    """Nobody else chooses it or connects from it, whoever was meant to serve there can, again and again."""
    port = choose_free_port()
    for _ in range(2):
        assert "PortTaken" in run(CHOOSE_FROM_ONE, port).stderr
        assert run(LISTEN, port).stdout == "answered\n"


def test_no_port_is_chosen_that_somebody_listens_on(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held or not."""
    port = listener.getsockname()[1]
    monkeypatch.setattr(ports, "_FREE_FROM", port)
    monkeypatch.setattr(ports, "_FREE_TO", port + 1)
    with pytest.raises(PortTaken):
        choose_free_port()


def test_held_ports_are_bounded() -> None:
    """A long run that chooses again and again must not use up its descriptors."""
    for _ in range(ports._MOST_HELD + 20):
        choose_free_port()
    assert len(ports._held) <= ports._MOST_HELD
