"""A trainer on a CPU keeps what it frees, until memory is scarce."""

import logging
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from asyncrl.trainer.ranks import freed_memory

HOLES = """
import logging, psutil, torch
from types import SimpleNamespace
from asyncrl.trainer.ranks import freed_memory

def resident():
    return psutil.Process().memory_info().rss / 2**20

freed_memory.keep()
before = resident()
# Every second tensor is freed: none of the holes is at the end of the heap.
tensors = [torch.ones(2**20) for _ in range(64)]
kept = tensors[1::2]
del tensors
freed = resident()
memory = SimpleNamespace(total=100, available=50)
freed_memory.machine_memory = lambda: memory
assert not freed_memory.give_back_if_scarce()
plenty = resident()
memory.available = 9
assert freed_memory.give_back_if_scarce()
print(before, freed, plenty, resident(), sum(float(each.sum()) for each in kept))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator keeps nothing")
def test_holes_between_tensors_stay_with_the_process_until_memory_is_scarce() -> None:
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    before, freed, plenty, scarce, total = map(float, run.stdout.split())
    # 64 tensors of 4 MiB were there, 32 still are.
    assert freed - before > 230 and plenty > freed - 8
    assert 120 < scarce - before < 160
    assert total == 32 * 2**20
    assert "of memory is left" in run.stderr


def test_nothing_is_measured_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_is_kept", False)
    monkeypatch.setattr(freed_memory, "machine_memory", lambda: pytest.fail("asked"))
    assert not freed_memory.give_back_if_scarce()


def test_scarce_memory_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(freed_memory, "_is_kept", True)
    monkeypatch.setattr(freed_memory, "_has_warned", False)
    scarce = SimpleNamespace(total=16 * 2**30, available=2**30)
    monkeypatch.setattr(freed_memory, "machine_memory", lambda: scarce)
    with caplog.at_level(logging.WARNING):
        assert freed_memory.give_back_if_scarce() and freed_memory.give_back_if_scarce()
    (record,) = caplog.records
    assert record.getMessage().startswith("1.0 of 16.0 GiB of memory is left: this rank returns freed memory")
