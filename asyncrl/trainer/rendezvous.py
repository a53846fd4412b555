"""Where the ranks of a trainer find each other: torch's TCPStore at MASTER_ADDR and MASTER_PORT.

It asks nobody for a token, and by itself listens on every network of the machine. Here it listens on
MASTER_ADDR alone, which is the loopback address while all ranks are on one machine.
"""

import ipaddress
import os
import socket
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import TCPStore


def meet(
    rank: int, count: int, *, timeout: timedelta, environment: Mapping[str, str] = os.environ
) -> TCPStore:
    """The store of `count` ranks; rank 0 keeps it. Waits for the others, `timeout` at most."""
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    if rank != 0 or not _is_number(address):
        # A name may stand for another address on its own machine, often 127.0.1.1.
        return TCPStore(address, port, count, is_master=rank == 0, timeout=timeout)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        # The store closes its own.
        own = os.dup(listener.fileno())
    return TCPStore(address, port, count, is_master=True, timeout=timeout, master_listen_fd=own)


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
