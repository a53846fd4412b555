"""How near a control group is to its limit, by its files and a driven clock."""

from pathlib import Path

import psutil
import pytest

from asyncrl.launch.meters.memory import MemoryLimitMeter
from asyncrl.system.machine import GroupMemory, group_memory

GIB = 2**30


class Group:
    """Files of a control group of version 2 around this process."""

    def __init__(self, folder: Path) -> None:
        self.own, self.mounted = folder / "cgroup", folder / "mounted"
        (self.mounted / "job").mkdir(parents=True)
        self.own.write_text("0::/job\n")

    def write(
        self, *, limit: int | str = 16 * GIB, used: int, cached: int = 0, stalled_us: int | None
    ) -> None:
        files = {
            "memory.max": limit,
            "memory.current": used,
            "memory.stat": f"anon 1\ninactive_file {cached}",
        }
        if stalled_us is not None:
            files["memory.pressure"] = (
                f"some avg10=9.00 avg60=1.00 avg300=0.00 total={stalled_us}\n"
                f"full avg10=0.00 avg60=0.00 avg300=0.00 total=7"
            )
        for name, value in files.items():
            (self.mounted / "job" / name).write_text(f"{value}\n")

    def measure(self) -> GroupMemory | None:
        return group_memory(self.own, self.mounted)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """On a machine of 64 GiB."""
    machine = psutil.virtual_memory()._replace(total=64 * GIB)
    monkeypatch.setattr("asyncrl.system.machine.psutil.virtual_memory", lambda: machine)
    return Group(tmp_path)


def test_a_row_has_the_share_in_use_and_the_share_of_the_time_that_processes_waited(group: Group) -> None:
    now = [100.0]
    group.write(used=8 * GIB, cached=4 * GIB, stalled_us=5_000_000)
    meter = MemoryLimitMeter(group.measure, lambda: now[0])
    now[0] += 20.0
    group.write(used=15 * GIB, cached=GIB, stalled_us=9_000_000)
    assert meter.row() == {"memory_limit_share": 0.875, "memory_stall_share": 0.2}
    now[0] += 10.0
    assert meter.row() == {"memory_limit_share": 0.875, "memory_stall_share": 0.0}


def test_a_kernel_that_counts_no_waits_leaves_the_column_out(group: Group) -> None:
    group.write(used=8 * GIB, stalled_us=None)
    meter = MemoryLimitMeter(group.measure)
    assert meter.row() == {"memory_limit_share": 0.5}


def test_two_rows_at_one_moment_divide_by_nothing(group: Group) -> None:
    group.write(used=8 * GIB, stalled_us=5)
    meter = MemoryLimitMeter(group.measure, lambda: 1.0)
    assert meter.row() == {"memory_limit_share": 0.5}


@pytest.mark.parametrize("limit", ["max", 64 * GIB, 9223372036854771712])
def test_without_a_limit_there_is_no_column(group: Group, limit: int | str) -> None:
    group.write(limit=limit, used=8 * GIB, stalled_us=5)
    assert group.measure() is None
    assert MemoryLimitMeter(group.measure).row() == {}
