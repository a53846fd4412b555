"""Where the ranks of a trainer find each other: torch's TCPStore at MASTER_ADDR and MASTER_PORT.

It asks for no token, and by default listens on every network of the machine. Here it listens on
MASTER_ADDR alone, which is the loopback address while all ranks are on one machine. Under torchrun the agent
may keep the store already, at an address of its own.
"""

import os
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

from asyncrl.system.ports import listen_at


def meet(rank: int, count: int, *, timeout: timedelta, environment: Mapping[str, str] = os.environ) -> Store:
    """The store of `count` ranks, kept by rank 0 or by torchrun. Waits at most `timeout` for the others."""
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = TCPStore(address, port, count, is_master=False, timeout=timeout)
        # A restart finds the keys of the ranks before it there.
        return PrefixStore(f"attempt-{environment['TORCHELASTIC_RESTART_COUNT']}", store)
    own = listen_at(address, port) if rank == 0 else None
    return TCPStore(address, port, count, is_master=rank == 0, timeout=timeout, master_listen_fd=own)
