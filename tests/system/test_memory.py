"""A process may use what the machine has, or what the tightest control group around it leaves; mounts."""

from pathlib import Path

import psutil
import pytest
from fakes.control_groups import GIB, Groups

from asyncrl.system.machine import Mount, machine_memory, mount_of


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return Groups(tmp_path, monkeypatch)


def measure(groups: Groups) -> tuple[int, int, bool]:
    memory = machine_memory(groups.own, groups.mounted)
    return memory.total, memory.available, memory.is_bounded


def test_a_container_may_use_its_limit_less_what_it_holds_but_for_cached_files(groups: Groups) -> None:
    groups.process_is_in("0::/")
    groups.make_v2("", 16 * GIB, used=10 * GIB, cached=3 * GIB)
    assert measure(groups) == (16 * GIB, 9 * GIB, True)


def test_the_tightest_of_all_groups_around_a_process_counts(groups: Groups) -> None:
    groups.process_is_in("0::/slurm/job_7/step_0")
    groups.make_v2("slurm/job_7/step_0", "max", used=GIB)
    groups.make_v2("slurm/job_7", 20 * GIB, used=2 * GIB)
    groups.make_v2("slurm", 30 * GIB, used=29 * GIB)
    assert measure(groups) == (20 * GIB, GIB, True)


def test_the_first_version_of_control_groups_bounds_as_well(groups: Groups) -> None:
    groups.process_is_in("5:cpu,cpuacct:/job", "4:memory:/job", "0::/")
    groups.make(
        "memory/job",
        memory_limit_in_bytes=8 * GIB,
        memory_usage_in_bytes=6 * GIB,
        memory_stat=f"inactive_file 1\ntotal_inactive_file {GIB}",
    )
    assert measure(groups) == (8 * GIB, 3 * GIB, True)


def test_a_container_that_sees_its_path_outside_finds_its_limit_at_the_root(groups: Groups) -> None:
    groups.process_is_in("4:memory:/docker/0123")
    groups.make("memory", memory_limit_in_bytes=8 * GIB, memory_usage_in_bytes=0, memory_stat="cache 0")
    assert measure(groups) == (8 * GIB, 8 * GIB, True)


@pytest.mark.parametrize("limit", ["max", 9223372036854771712, 48 * GIB])
def test_a_group_without_a_limit_or_with_more_than_the_machine_has_left_bounds_nothing(
    groups: Groups, limit: int | str
) -> None:
    groups.process_is_in("0::/")
    groups.make_v2("", limit, used=0)
    assert measure(groups)[1:] == (40 * GIB, False)


def test_more_in_use_than_allowed_leaves_nothing(groups: Groups) -> None:
    groups.process_is_in("0::/")
    groups.make_v2("", 16 * GIB, used=17 * GIB)
    assert measure(groups)[1] == 0


def test_without_control_groups_it_is_the_machines(groups: Groups) -> None:
    groups.own.unlink()
    assert measure(groups) == (64 * GIB, 40 * GIB, False)


def test_what_this_machine_says_of_this_process_can_be_read() -> None:
    memory = machine_memory()
    assert 0 < memory.available <= memory.total <= psutil.virtual_memory().total


LINES = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:50 / /data rw shared:7 master:1 - nfs4 server:/export rw,vers=4.2
31 22 0:51 / /my\\040disk rw - xfs /dev/sdb1 rw
32 30 0:52 / /data rw - ext4 /dev/sdc1 rw
broken line
"""


def test_the_innermost_mount_holds_a_folder_and_the_later_one_hides_an_earlier(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(LINES)
    assert mount_of(Path("/nowhere"), file) == Mount(Path("/"), "ext4", "/dev/sda1")
    assert mount_of(Path("/data/runs"), file) == Mount(Path("/data"), "ext4", "/dev/sdc1")
    assert mount_of(Path("/my disk/a"), file) == Mount(Path("/my disk"), "xfs", "/dev/sdb1")


def test_the_list_of_this_machine_is_read() -> None:
    mount = mount_of(Path("/proc/self"))
    assert mount is not None and mount.kind == "proc"


def test_without_a_list_nothing_is_known(tmp_path: Path) -> None:
    assert mount_of(tmp_path, tmp_path / "none") is None
