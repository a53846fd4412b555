"""A torch.distributed group of one rank of the trainer and the tensor ranks of servers, apart from the
trainer's own groups. NCCL between GPUs, gloo between CPUs.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

JOIN_SECONDS = 30.0
"""Longest wait for the servers to join a group."""
GROUP_SECONDS = 300.0
"""When torch itself gives a broadcast up, which with NCCL ends the process: later than who waits for it."""
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a group meets; the trainer's rank listens there."""

    name: str
    """Of the group. Unique: a server remembers the groups of trainers that have died."""
    host: str
    port: int


def choose_address(name: str, urls: Iterable[str]) -> Address:
    """A free port of this machine, at a host that the servers at `urls` can reach."""
    is_local = all(urlsplit(url).hostname in LOOPBACK for url in urls)
    with socket.socket() as chosen:
        chosen.bind(("", 0))
        port: int = chosen.getsockname()[1]
    return Address(name, LOOPBACK[0] if is_local else socket.gethostname(), port)


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


class UpdateGroup:
    """This process is rank 0, the ranks of the servers follow."""

    def __init__(self, address: Address, num_receivers: int, backend: str) -> None:
        """Returns when all have joined. Raises RuntimeError after JOIN_SECONDS.

        The counterpart of SGLang 0.5.23's init_custom_process_group, whose store and prefix it must share.
        """
        size = num_receivers + 1
        method = f"tcp://{address.host}:{address.port}"
        join = timedelta(seconds=JOIN_SECONDS)
        store, _, _ = next(c10d.rendezvous(method, 0, size, timeout=join))
        store.set_timeout(join)
        self._group, _ = c10d._new_process_group_helper(
            size,
            0,
            [],
            c10d.Backend(backend),
            c10d.PrefixStore(address.name, store),
            group_name=c10d.GroupName(address.name),
            backend_options=None,
            timeout=join,
        )
        c10d._set_pg_timeout(timedelta(seconds=GROUP_SECONDS), self._group)
        c10d._world.pg_group_ranks[self._group] = {rank: rank for rank in range(size)}

    def send(self, flat: Tensor) -> dist.Work:
        """Begins to broadcast `flat`, which must not change until the work is waited for."""
        work: dist.Work = dist.broadcast(flat, group_src=0, group=self._group, async_op=True)
        return work

    def close(self) -> None:
        """Who still waits in it is told that the connection is closed."""
        dist.destroy_process_group(self._group)
