"""Ports on loopback, the machine's name, the model hub, and proxies."""

import os
import socket
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from asyncrl.launch.doctor.probe import Finding, broken, lost, ok
from asyncrl.system.network import RANGE, free_ports

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = {"http": 80, "https": 443}
CONNECT_SECONDS = 3.0
HUB_SECONDS = 5.0
"""Time limit of one request."""
SEVERAL = 8
"""Ports that a run of a few servers and ranks takes."""
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
TRUE = ("1", "true", "yes", "on")
PROXIES = ("https_proxy", "http_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def talk_to_oneself() -> None:
    """A message over TCP to a port of this process. Raises OSError."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(CONNECT_SECONDS)
        with socket.create_connection(server.getsockname(), timeout=CONNECT_SECONDS) as client:
            client.sendall(b"asyncrl")
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(CONNECT_SECONDS)
                if accepted.recv(7) != b"asyncrl":
                    raise OSError("what was sent is not what arrived")


def ports(
    *, talk: Callable[[], None] = talk_to_oneself, reserve: Callable[[int], list[int]] = free_ports
) -> Finding:
    """Whether processes of this machine reach each other, and free ports for them."""
    try:
        talk()
    except OSError as error:
        return broken(
            f"{LOOPBACK} does not answer: {error}",
            "Servers, controller and trainer talk over it: no run starts.",
            "Bring the loopback device up (ip link set lo up), and let the firewall pass it.",
        )
    try:
        reserve(SEVERAL)
    except OSError as error:
        return broken(
            str(error),
            "Servers and ranks find no port to listen on.",
            f"End what listens there (ss -ltn), or what holds the range {RANGE.start} to {RANGE.stop - 1}.",
        )
    return ok(f"{LOOPBACK} answers, {RANGE.start} to {RANGE.stop - 1} have room")


def host_name(
    *, name: Callable[[], str] = socket.gethostname, resolve: Callable[[str], str] = socket.gethostbyname
) -> Finding:
    """The machine's own name, by which gloo and Ray find an address."""
    own = name()
    try:
        address = resolve(own)
    except OSError as error:
        return lost(
            f"{own}: {error}",
            "Ranks on CPUs (gloo) and Ray look their own name up: they start seconds later, or not at all on "
            "several machines.",
            f"Add a line to /etc/hosts: 127.0.1.1 {own}; on several machines the address of their network.",
        )
    return ok(f"{own} is {address}")


@dataclass(frozen=True, slots=True)
class HubAnswer:
    status: int
    seconds: float


def ask_hub(url: str, token: str | None) -> HubAnswer:
    """A HEAD request, with the proxies of the environment. Raises OSError."""
    # Imported here: it takes 0.2 s.
    import httpx

    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        answer = httpx.head(url, headers=headers, timeout=HUB_SECONDS, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    return HubAnswer(answer.status_code, answer.elapsed.total_seconds())


def hub_settings() -> tuple[str, str | None]:
    """(endpoint, token): as huggingface_hub finds them, the token in HF_TOKEN or in the file of a login."""
    from huggingface_hub import constants, get_token

    return constants.ENDPOINT, get_token()


def hub(
    environment: Mapping[str, str] = os.environ,
    *,
    settings: Callable[[], tuple[str, str | None]] = hub_settings,
    ask: Callable[[str, str | None], HubAnswer] = ask_hub,
) -> Finding:
    """Whether models and data sets can be fetched. Never prints the token."""
    local = "Models and data sets come from folders of this machine and from the hub's cache alone."
    offline = [name for name in OFFLINE if environment.get(name, "").lower() in TRUE]
    if offline:
        return lost(f"offline ({', '.join(offline)})", local, f"Unset {' and '.join(offline)} to fetch.")
    endpoint, token = settings()
    try:
        answer = ask(endpoint, None)
    except OSError as error:
        return lost(
            f"{endpoint} cannot be reached: {error}",
            local,
            "Set HF_ENDPOINT to a mirror, https_proxy to a proxy, or name copies in recipes (model.path, "
            "data.train): asyncrl needs no hub for folders and files.",
        )
    if answer.status >= 400:
        return lost(
            f"{endpoint} answers {answer.status}",
            local,
            "Correct HF_ENDPOINT, or ask who runs that mirror or proxy.",
        )
    reached = f"{endpoint} answers in {answer.seconds:.1f} s"
    if token is None:
        return ok(f"{reached}; no token: public models and data sets alone")
    return _token(reached, endpoint, token, ask)


def _token(reached: str, endpoint: str, token: str, ask: Callable[[str, str | None], HubAnswer]) -> Finding:
    try:
        status = ask(f"{endpoint}/api/whoami-v2", token).status
    except OSError as error:
        return ok(f"{reached}, a token (not tried: {error})")
    if status in (401, 403):
        return lost(
            f"{reached}; the token is refused ({status})",
            "Private and gated models are refused, and public ones where a wrong token is sent along.",
            "Log in again (hf auth login), or correct or unset HF_TOKEN.",
        )
    else:
        return ok(f"{reached}, with a token")


def connect(host: str, port: int) -> None:
    """Raises OSError."""
    with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
        pass


def proxies(
    environment: Mapping[str, str] = os.environ, *, reach: Callable[[str, int], None] = connect
) -> Iterator[Finding]:
    """The proxies of the environment, without their passwords. Commands keep loopback out of them."""
    named = {name: value for name in PROXIES if (value := environment.get(name))}
    if not named:
        yield ok("none")
        return
    for value in dict.fromkeys(named.values()):
        names = ", ".join(name for name, other in named.items() if other == value)
        yield _proxy(names, value, reach)


def _proxy(names: str, value: str, reach: Callable[[str, int], None]) -> Finding:
    consequence = "Models, data sets and remote verifiers are not reached."
    try:
        parts = urllib.parse.urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme, 1080)
    except ValueError as error:
        return lost(f"{names} is no URL: {error}", consequence, f"Correct or unset {names}.")
    if host is None:
        return lost(f"{names} names no host", consequence, f"Correct or unset {names}.")
    shown = f"{names}: {parts.scheme}://{host}:{port}"
    try:
        reach(host, port)
    except OSError as error:
        fix = f"Start it, or correct or unset {names}."
        return lost(f"{shown} does not answer: {error}", consequence, fix)
    return ok(f"{shown} answers; loopback is reached directly")
