"""Which hosts a proxy is not asked for, as the clients inside SGLang and in verifiers understand it."""

import urllib.request

import pytest

from asyncrl.serving.engine.environment import engine_environment
from asyncrl.system.network import loopback_direct

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
