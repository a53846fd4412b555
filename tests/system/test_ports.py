"""Two processes that choose ports at the same time choose different ones."""

import socket
import subprocess
import sys

import pytest

from asyncrl.system import network

CHOOSE = (
    "import sys; from asyncrl.system import network; first = int(sys.argv[1]); "
    "network.RANGE = range(first, first + 60); print(*network.free_ports(20), flush=True); sys.stdin.read()"
)


def choosing(first: int) -> subprocess.Popen[str]:
    """A process that holds 20 of 60 ports until its input ends."""
    command = [sys.executable, "-c", CHOOSE, str(first)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_live_at_the_same_time_choose_different_ports() -> None:
    (first,) = network.free_ports(1)
    with choosing(first) as one, choosing(first) as other:
        assert one.stdout is not None and other.stdout is not None
        chosen = [*one.stdout.readline().split(), *other.stdout.readline().split()]
        assert len(set(chosen)) == 40
        one.communicate()
        other.communicate()


def test_a_port_on_which_somebody_listens_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(network, "RANGE", range(port, port + 1))
        with pytest.raises(OSError, match=f"fewer than 1 free ports between {port} and {port}"):
            network.free_ports(1)


def test_the_kernel_hands_out_no_port_of_the_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[1] not in network.RANGE


def test_a_listener_at_an_address_is_not_reached_at_another_one() -> None:
    (port,) = network.free_ports(1)
    descriptor = network.listen_at("127.0.0.2", port)
    assert descriptor is not None
    with socket.socket(fileno=descriptor):
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    assert network.listen_at("localhost", port) is None
