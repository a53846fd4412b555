"""Keeps loopback out of proxies (http_proxy, HTTP_PROXY, ALL_PROXY).

Our aiohttp sessions use no proxy, but requests, httpx and urllib (in SGLang and in verifiers) follow the
environment variables.
"""

from collections.abc import Mapping

LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")


def loopback_direct(environment: Mapping[str, str], *own: str) -> dict[str, str]:
    """Variables to add to `environment`: both spellings of no_proxy, previous hosts included. `own` are other
    names of this machine."""
    hosts = [environment.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    before = [host.strip() for text in hosts for host in text.split(",") if host.strip()]
    # Clients understand "*" only if it stands alone.
    value = "*" if "*" in before else ",".join(dict.fromkeys([*before, *LOOPBACK, *own]))
    return {"no_proxy": value, "NO_PROXY": value}
