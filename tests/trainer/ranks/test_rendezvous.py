"""Ranks meet at one address and nowhere else."""

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from asyncrl.system.network import free_ports
from asyncrl.trainer.ranks.ranks import meet

TIMEOUT = timedelta(seconds=30)


def listening_on(port: int) -> set[str]:
    """Addresses on which this process listens at `port`."""
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_two_ranks_share_a_store_that_listens_on_the_address_of_the_first_alone(address: str) -> None:
    (port,) = free_ports(1)
    environment = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    found = []

    def second() -> None:
        found.append(meet(1, 2, timeout=TIMEOUT, environment=environment).get("word"))

    thread = threading.Thread(target=second)
    thread.start()
    store = meet(0, 2, timeout=TIMEOUT, environment=environment)
    assert listening_on(port) == {address}
    store.set("word", "here")
    thread.join(30)
    assert found == [b"here"]
    before = len(os.listdir("/proc/self/fd"))
    del store
    assert listening_on(port) == set() and len(os.listdir("/proc/self/fd")) < before


def test_a_name_is_met_wherever_its_machine_listens() -> None:
    (port,) = free_ports(1)
    environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    store = meet(0, 1, timeout=TIMEOUT, environment=environment)
    with socket.create_connection(("127.0.0.3", port), timeout=10):
        pass
    store.set("word", "here")


def test_torchruns_store_serves_the_ranks_and_a_restart_starts_from_an_empty_one() -> None:
    agents = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(agents.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    first, second = (meet(rank, 2, timeout=TIMEOUT, environment=environment) for rank in range(2))
    first.set("word", "here")
    assert second.get("word") == b"here"
    restarted = meet(1, 2, timeout=TIMEOUT, environment=environment | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert not restarted.check(["word"])


def num_loops() -> int:
    return [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")].count(
        "gloo_tcp_loop"
    )


def test_many_groups_have_the_thread_of_one() -> None:
    # conftest.py has joined the first of them.
    groups = [dist.new_group(backend="gloo") for _ in range(20)]
    total = torch.ones(3)
    for group in groups:
        dist.all_reduce(total, group=group)
        dist.monitored_barrier(group)
    assert total.tolist() == [1.0] * 3
    assert num_loops() == 1
    for group in groups:
        dist.destroy_process_group(group)
