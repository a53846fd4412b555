"""Ranks meet, and wait for each other: a dead one is noticed in time, a slow first one is waited for."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from fakes.template import Forked, Template
from torch.distributed import TCPStore

from asyncrl.errors import RankLost
from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Trainer
from asyncrl.system.network import free_ports
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.ranks.ranks import meet

MODULE = "fakes.lonely_rank"
ENDED_SECONDS = 120
"""For a process to start, or to end after its timeout of 5 s, on a busy machine."""


@contextlib.contextmanager
def two_ranks(template: Template, folder: Path, work: str) -> Iterator[list[Forked]]:
    """Two real ranks over gloo, after they have met; their output goes to FOLDER/log-<rank>."""
    port = free_ports(1)[0]
    processes = []
    for rank in range(2):
        environment = os.environ | rank_environment(Trainer(num_processes=2), rank, port=port)
        with (folder / f"log-{rank}").open("wb") as log:
            arguments = [str(folder), work]
            processes.append(template.start(MODULE, arguments, environment=environment, output=log))
    try:
        deadline = time.monotonic() + ENDED_SECONDS
        while not all((folder / f"met-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline, (folder / "log-0").read_text()
            time.sleep(0.05)
        yield processes
    finally:
        for process in processes:
            # Some of them have ended.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("how", "victim", "work"),
    [
        pytest.param(signal.SIGKILL, 1, "sum", marks=pytest.mark.exhaustive),
        (signal.SIGKILL, 0, "alone"),
        (signal.SIGSTOP, 0, "sum"),
        pytest.param(signal.SIGSTOP, 1, "alone", marks=pytest.mark.exhaustive),
    ],
)
def test_when_one_of_two_ranks_dies_or_hangs_the_other_ends_and_says_so(
    how: signal.Signals, victim: int, work: str, template: Template, tmp_path: Path
) -> None:
    log = tmp_path / f"log-{1 - victim}"
    with two_ranks(template, tmp_path, work) as processes:
        processes[victim].send_signal(how)
        assert processes[1 - victim].wait(ENDED_SECONDS) == RankLost.EXIT_CODE, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert last.startswith(f"RankLost: rank {1 - victim} of 2 lost another rank: it died, or did not answer")
    assert "within 5 s (trainer.rank_timeout_seconds)" in last


@pytest.mark.exhaustive
def test_what_the_first_rank_does_alone_may_take_longer_than_the_timeout(
    template: Template, tmp_path: Path
) -> None:
    with two_ranks(template, tmp_path, "patience") as processes:
        assert [process.wait(ENDED_SECONDS) for process in processes] == [0, 0], (
            tmp_path / "log-1"
        ).read_text()
    assert [(tmp_path / f"result-{rank}").read_text() for rank in range(2)] == [
        "the result: [0, 1, 2, 3] and []"
    ] * 2


def test_other_errors_are_not_taken_for_a_lost_rank() -> None:
    assert ranks.lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")) is None


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
