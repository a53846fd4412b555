"""Free TCP ports of this machine, and loopback kept out of proxies."""

import ipaddress
import itertools
import os
import random
import socket
from collections.abc import Mapping

# Such a process first imports torch and listens seconds later. Its port must stay free until then: the kernel
# hands out none of RANGE by itself, and a process that chooses one here holds its name until it ends.
RANGE = range(20_000, 22_000)
"""Above the ports of Ray's workers (10002 to 19999), below those that SGLang chooses (22000 to 29999) and
those of the kernel (from 32768)."""


def free_ports(count: int) -> list[int]:
    """Distinct ports on which nothing listens and that no other call on this machine has returned, unless its
    process has ended. Raises OSError where RANGE has too few."""
    # Not the shared generator: equal seeds would have all runs try the same ports in the same order.
    ports = random.SystemRandom().sample(RANGE, len(RANGE))
    found = list(itertools.islice(filter(_take, ports), count))
    if len(found) < count:
        raise OSError(f"fewer than {count} free ports between {RANGE.start} and {RANGE.stop - 1}")
    return found


def listen_at(address: str, port: int) -> int | None:
    """A file descriptor that listens there, for a library that would listen on every network and that closes
    it. None for a name, which may stand for another address on its own machine, often 127.0.1.1."""
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return None
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
        return os.dup(listener.fileno())


def _take(port: int) -> bool:
    """False when it is in use. Otherwise it is this process's from now on."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        # An abstract name: one socket of the machine can have it, and it ends with its process.
        holder.bind(f"\0asyncrl-port-{port}")
        with socket.socket() as listener:
            listener.bind(("", port))
    except OSError:
        holder.close()
        return False
    # Stays open when `holder` is collected.
    holder.detach()
    return True


# Our aiohttp sessions use no proxy; requests, httpx and urllib (SGLang, verifiers) follow the variables.
LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")


def loopback_direct(environment: Mapping[str, str], *own: str) -> dict[str, str]:
    """Both spellings of no_proxy to add to `environment`, hosts of before included, and `own` names."""
    hosts = [environment.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    before = [host.strip() for text in hosts for host in text.split(",") if host.strip()]
    # Clients understand "*" only if it stands alone.
    value = "*" if "*" in before else ",".join(dict.fromkeys([*before, *LOOPBACK, *own]))
    return {"no_proxy": value, "NO_PROXY": value}
