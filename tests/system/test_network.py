"""Ports that no two processes choose, and proxies that loopback goes around."""

import socket
import subprocess
import sys
import urllib.request

import pytest

from asyncrl.serving.engine.environment import engine_environment
from asyncrl.system import network
from asyncrl.system.network import loopback_direct

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


PROXY = "http://10.255.255.1:3128"


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_what_was_excepted_before_stays_so(name: str) -> None:
    added = loopback_direct({name: "example.org, 10.0.0.0/8"})
    assert added["no_proxy"] == added["NO_PROXY"]
    assert added["no_proxy"].split(",")[:3] == ["example.org", "10.0.0.0/8", "127.0.0.1"]
    assert loopback_direct(added) == added


@pytest.mark.parametrize("said", ["*", " * ", "example.org,*"])
def test_no_proxy_for_any_host_stays_so(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests.utils

    added = loopback_direct({"NO_PROXY": said})
    assert added == {"no_proxy": "*", "NO_PROXY": "*"}
    monkeypatch.setenv("http_proxy", PROXY)
    for name, value in added.items():
        monkeypatch.setenv(name, value)
    assert not requests.utils.get_environ_proxies("http://example.org/")


def test_clients_go_to_loopback_directly_and_to_others_by_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    import requests.utils

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, PROXY)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert requests.utils.get_environ_proxies("http://127.0.0.1:30000/ready")["http"] == PROXY
    for name, value in engine_environment(threads=1, has_gpu=True).items():
        monkeypatch.setenv(name, value)
    for host in ("127.0.0.1", "localhost", "[::1]"):
        url = f"http://{host}:30000/ready"
        assert not requests.utils.get_environ_proxies(url)
        with httpx.Client() as client:
            assert client._transport_for_url(httpx.URL(url)) is client._transport
    assert urllib.request.proxy_bypass("127.0.0.1") and not urllib.request.proxy_bypass("example.org")
    assert requests.utils.get_environ_proxies("http://example.org/")["http"] == PROXY
