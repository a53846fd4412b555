import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from asyncrl.system.network import free_ports
from asyncrl.trainer.ranks import update_group
from asyncrl.trainer.ranks.update_group import LOOPBACK, Address, UpdateGroup

CPU = torch.device("cpu")


class SilentNccl:
    """As NCCL while a server hangs: to connect takes until the test ends, and is counted."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.begun = 0

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.begun += 1
        self.woken.wait()


@pytest.fixture
def group() -> Iterator[UpdateGroup]:
    """A group of the trainer alone."""
    group = UpdateGroup(Address("weights-alone", LOOPBACK[0], free_ports(1)[0]), 0, "gloo")
    yield group
    group.close()


def test_a_server_that_hangs_in_the_first_broadcast_is_waited_for_as_long_as_asked(
    group: UpdateGroup, monkeypatch: pytest.MonkeyPatch
):
    nccl = SilentNccl()
    with monkeypatch.context() as patch:
        patch.setattr(group, "_group", SimpleNamespace(_get_backend=lambda _: nccl))
        with pytest.raises(TimeoutError):
            group.connect(CPU, timeout_seconds=0.05)
    assert nccl.begun == 1
    nccl.woken.set()


def test_a_group_connects_once_and_sends_afterwards(group: UpdateGroup, monkeypatch: pytest.MonkeyPatch):
    group.connect(CPU, timeout_seconds=60.0)
    monkeypatch.setattr(update_group, "_connect", pytest.fail)
    group.connect(CPU, timeout_seconds=60.0)
    assert group.send(torch.ones(3)).wait()


def test_what_keeps_a_group_from_connecting_is_raised_where_it_is_waited_for(
    group: UpdateGroup, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: torch.device) -> None:
        raise RuntimeError("ncclSystemError: no route")

    with monkeypatch.context() as patch:
        backend = SimpleNamespace(eager_connect_single_device=refuse)
        patch.setattr(group, "_group", SimpleNamespace(_get_backend=lambda _: backend))
        with pytest.raises(RuntimeError, match="no route"):
            group.connect(CPU, timeout_seconds=60.0)
