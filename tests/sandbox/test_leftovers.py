"""What a killed worker leaves is taken away by whoever comes next; what a living one has is not."""

import os
import subprocess

from sandbox import cgroup, leftovers, users


def test_a_directory_is_kept_while_its_worker_holds_the_lock(tmp_path):
    path, lock = leftovers.make_work_base(str(tmp_path), os.getuid())
    os.makedirs(f"{path}/7/work")
    leftovers.sweep(str(tmp_path), [])
    assert os.path.isdir(f"{path}/7/work")
    os.close(lock)
    (tmp_path / "asyncrl-other").mkdir()
    leftovers.sweep(str(tmp_path), [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["asyncrl-other"]


def test_processes_in_the_group_of_a_dead_worker_are_ended(tmp_path):
    """On a directory that stands in for the kernel's; its file keeps it from being removed."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    group = tmp_path / f"asyncrl-sandbox-{dead.pid}"
    group.mkdir()
    left = subprocess.Popen(["sleep", "600"])
    living = tmp_path / f"asyncrl-sandbox-{os.getpid()}"
    living.mkdir()
    kept = subprocess.Popen(["sleep", "600"])
    (group / "cgroup.procs").write_text(f"0\n{left.pid}\n")
    (living / "cgroup.procs").write_text(f"{kept.pid}\n")
    try:
        home = cgroup.Hierarchy(frozenset({"memory"}), 1, tmp_path)
        assert not cgroup.sweep([home])
        assert left.wait(timeout=300) == -9
        assert kept.poll() is None
    finally:
        for process in (left, kept):
            process.kill()
            process.wait()


def test_a_user_is_known_to_a_namespace_by_its_map():
    assert users.is_mapped("         0          0 4294967295\n", 61184)
    assert users.is_mapped("0 1000 1\n1 100000 65536\n", 61184)
    assert not users.is_mapped("0 1000 1\n", 61184)


def test_each_worker_of_roots_has_a_user_of_its_own():
    held = [users.claim() for _ in range(3)]
    try:
        if os.getuid() != 0:
            assert {user for user, _ in held} == {os.getuid()}
        elif all(claimed is not None for _, claimed in held):
            assert len({user for user, _ in held}) == 3
            assert min(user for user, _ in held) > 60000
        else:
            assert {user for user, _ in held} == {65534}
    finally:
        for _, claimed in held:
            if claimed is not None:
                claimed.close()
