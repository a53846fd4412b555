"""Loopback never goes through a proxy: http_proxy, HTTP_PROXY and ALL_PROXY mean the world outside.

aiohttp's sessions, as we make them, ask no proxy anyway; requests, httpx and urllib, inside SGLang and in
verifiers, follow the environment.
"""

from collections.abc import Mapping

LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")


def loopback_direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to `environment`: both spellings of no_proxy, with what they said before."""
    hosts = [environment.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    before = [host.strip() for text in hosts for host in text.split(",") if host.strip()]
    # Its clients understand it only where nothing stands beside it.
    value = "*" if "*" in before else ",".join(dict.fromkeys([*before, *LOOPBACK]))
    return {"no_proxy": value, "NO_PROXY": value}
