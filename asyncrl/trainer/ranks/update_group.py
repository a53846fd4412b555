"""A torch.distributed group of one rank of the trainer and the tensor ranks of servers, apart from the
trainer's own groups. NCCL between GPUs, gloo between CPUs.
"""

import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from asyncrl.serving import weight_group
from asyncrl.system.machine import outward_address

JOIN_SECONDS = 30.0
"""Longest wait for the servers to join a group."""
GROUP_SECONDS = 300.0
"""When torch itself gives up a broadcast: later than the caller that waits for it."""
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a group meets; the trainer's rank listens there."""

    name: str
    """Name of the group. Unique: a server remembers the groups of trainers that have died."""
    host: str
    port: int


def choose_address(name: str, urls: Iterable[str]) -> Address:
    """A free port of this machine, at an address that the servers at `urls` can reach."""
    elsewhere = [host for url in urls if (host := urlsplit(url).hostname) and host not in LOOPBACK]
    with socket.socket() as chosen:
        chosen.bind(("", 0))
        port: int = chosen.getsockname()[1]
    # Not the machine's name: other nodes may not resolve it, and here it may stand for 127.0.1.1.
    return Address(name, outward_address(elsewhere[0]) if elsewhere else LOOPBACK[0], port)


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
        with weight_group.errors_raised_where_they_are_waited_for():
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
        self._is_connected = False

    def connect(self, device: torch.device, *, timeout_seconds: float) -> None:
        """Connects to the servers as they begin to receive; returns at once when that is done.

        NCCL connects with the first broadcast and waits without limit for a server that hangs. Raises
        TimeoutError, and RuntimeError where NCCL fails. The thread that waits is left behind: nothing ends
        its wait, and it sends nothing should the server wake up.
        """
        if self._is_connected:
            return
        done: Future[None] = Future()
        threading.Thread(
            target=_connect, args=(self._group, device, done), name="connect-servers", daemon=True
        ).start()
        done.result(timeout_seconds)
        self._is_connected = True

    def send(self, flat: Tensor) -> dist.Work:
        """Begins to broadcast `flat`, which must not change until the work is waited for."""
        work: dist.Work = dist.broadcast(flat, group_src=0, group=self._group, async_op=True)
        return work

    def close(self) -> None:
        """Leaves it, whatever the servers do."""
        weight_group.end(self._group)


def _connect(group: dist.ProcessGroup, device: torch.device, done: "Future[None]") -> None:
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # Does nothing on gloo, which has connected as the group was made.
        group._get_backend(device).eager_connect_single_device(device)
        done.set_result(None)
    except Exception as error:
        done.set_exception(error)
