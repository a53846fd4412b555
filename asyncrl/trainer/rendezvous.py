"""Where the ranks of a trainer find each other: torch's TCPStore at MASTER_ADDR and MASTER_PORT.

It asks nobody for a token, and by itself listens on every network of the machine. Here it listens on
MASTER_ADDR alone, which is the loopback address while all ranks are on one machine.
"""

import os
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import TCPStore

from asyncrl.ports import listen_at


def meet(
    rank: int, count: int, *, timeout: timedelta, environment: Mapping[str, str] = os.environ
) -> TCPStore:
    """The store of `count` ranks; rank 0 keeps it. Waits for the others, `timeout` at most."""
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    own = listen_at(address, port) if rank == 0 else None
    return TCPStore(address, port, count, is_master=rank == 0, timeout=timeout, master_listen_fd=own)
