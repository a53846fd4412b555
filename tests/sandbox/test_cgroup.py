"""Where control groups are made, and what is written into them: on directories that stand
in for the kernel's."""

import os
from pathlib import Path

import pytest

from sandbox.cgroup import Cgroup, Hierarchy, available_cores, find_hierarchies
from sandbox.leftovers import sweep_groups

BOTH = frozenset({"memory", "pids"})


def mount_line(point, kind, options, root="/"):
    return f"31 23 0:28 {root} {point} rw,relatime - {kind} {kind} {options}"


def test_version_one_groups_are_made_below_the_callers_own(tmp_path):
    (tmp_path / "memory" / "mine").mkdir(parents=True)
    (tmp_path / "pids").mkdir()
    mounts = [
        mount_line(tmp_path / "memory", "cgroup", "rw,memory"),
        mount_line(tmp_path / "pids", "cgroup", "rw,pids"),
        mount_line(tmp_path / "cpu", "cgroup", "rw,cpu"),
    ]
    found = find_hierarchies("\n".join(mounts), "4:memory:/mine\n8:pids:/\n1:cpu:/\n")
    assert found == [
        Hierarchy(frozenset({"memory"}), 1, tmp_path / "memory" / "mine"),
        Hierarchy(frozenset({"pids"}), 1, tmp_path / "pids"),
    ]


def test_version_two_groups_are_made_where_controllers_are_handed_down(tmp_path):
    own = tmp_path / "user.slice" / "session.scope"
    own.mkdir(parents=True)
    for directory, text in ((tmp_path, "cpu memory pids"), (own.parent, "memory pids"), (own, "")):
        (directory / "cgroup.subtree_control").write_text(text)
    mounts = mount_line(tmp_path, "cgroup2", "rw")
    assert find_hierarchies(mounts, "0::/user.slice/session.scope\n") == [Hierarchy(BOTH, 2, own.parent)]
    (own.parent / "cgroup.subtree_control").write_text("pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    assert find_hierarchies(mounts, "0::/user.slice/session.scope\n") == []


def test_bounds_are_written_once_for_equal_limits(tmp_path):
    group = Cgroup([Hierarchy(BOTH, 2, tmp_path)], os.getpid())
    directory = tmp_path / f"asyncrl-sandbox-{os.getpid()}"
    group.bound(1000 << 20, 10)
    assert (directory / "memory.max").read_text() == str((1000 + 96) << 20)
    assert (directory / "pids.max").read_text() == "16"
    (directory / "memory.max").write_text("untouched")
    group.bound(1000 << 20, 10)
    assert (directory / "memory.max").read_text() == "untouched"
    assert group.controls("memory") and group.controls("pids")


def test_memory_kills_are_counted(tmp_path):
    for version, name in ((1, "memory.oom_control"), (2, "memory.events")):
        home = tmp_path / str(version)
        home.mkdir()
        # The kernel fills a new group's directory at once.
        (home / "asyncrl-sandbox-1").mkdir()
        (home / "asyncrl-sandbox-1" / name).write_text("low 0\nunder_oom 1\noom_kill 3\n")
        group = Cgroup([Hierarchy(BOTH, version, home)], 1)
        assert group.num_oom_kills() == 3


def test_groups_of_the_dead_are_swept_and_of_the_living_kept(tmp_path):
    for pid in (os.getpid(), 2**30):
        (tmp_path / f"asyncrl-sandbox-{pid}").mkdir()
    (tmp_path / "someone-elses").mkdir()
    sweep_groups([Hierarchy(BOTH, 2, tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"asyncrl-sandbox-{os.getpid()}",
        "someone-elses",
    ]


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def cores(folder: Path, line: str, files: dict[str, str]) -> int:
    own = folder / "own"
    own.write_text(f"{line}\n")
    for name, text in files.items():
        file = folder / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return available_cores(own, folder / "mounted")


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("400000 100000", 4),
        ("max 100000", 16),
        # Never more runs at once than there is time for, and never none.
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("6400000 100000", 16),
        ("nonsense", 16),
    ],
)
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, quota: str, expected: int) -> None:
    assert cores(tmp_path, "0::/", {"cpu.max": quota}) == expected


def test_the_tightest_group_around_a_process_counts(tmp_path: Path) -> None:
    files = {"job/step/cpu.max": "max 100000", "job/cpu.max": "300000 100000", "cpu.max": "800000 100000"}
    assert cores(tmp_path, "0::/job/step", files) == 3


@pytest.mark.parametrize(("quota", "expected"), [("200000", 2), ("-1", 16)])
def test_the_first_version_of_control_groups_bounds_as_well(
    tmp_path: Path, quota: str, expected: int
) -> None:
    files = {"cpu/job/cpu.cfs_quota_us": quota, "cpu/job/cpu.cfs_period_us": "100000"}
    assert cores(tmp_path, "3:cpu,cpuacct:/job", files) == expected


def test_without_control_groups_affinity_decides(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "missing", tmp_path) == 16
