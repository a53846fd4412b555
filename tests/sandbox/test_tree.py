"""Directories as hostile programs leave them: measured within bounds, removed whole, links never followed."""

import os

import pytest

from sandbox import tree

ENOUGH = {"enough_bytes": 1 << 40, "enough_entries": 1 << 20}


def nest(path, levels, name="d"):
    """Directories below each other, far beyond the longest path."""
    path.mkdir()
    below = os.open(path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=below)
        deeper = os.open(name, os.O_RDONLY, dir_fd=below)
        os.close(below)
        below = deeper
    return below


@pytest.mark.parametrize("name", ["d", "d" * 250])
def test_a_nesting_of_any_depth_is_removed(tmp_path, name):
    below = nest(tmp_path / "top", 1200, name)
    os.close(os.open("file", os.O_CREAT, dir_fd=below))
    os.close(below)
    assert tree.remove(str(tmp_path / "top"))
    assert not (tmp_path / "top").exists()


def test_a_nesting_below_the_bound_is_measured_and_one_beyond_it_is_told(tmp_path):
    below = nest(tmp_path / "top", tree.MAX_DEPTH - 1, "d" * 250)
    with open(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below), "wb") as file:
        file.write(bytes(100_000))
    os.close(below)
    found = tree.measure(str(tmp_path / "top"), **ENOUGH)
    assert (found.num_entries, found.is_too_deep) == (tree.MAX_DEPTH, False)
    assert found.num_bytes >= 100_000
    held = len(os.listdir("/proc/self/fd"))
    os.close(nest(tmp_path / "deeper", tree.MAX_DEPTH + 1))
    assert tree.measure(str(tmp_path / "deeper"), **ENOUGH).is_too_deep
    assert len(os.listdir("/proc/self/fd")) == held


def test_counting_ends_beyond_enough(tmp_path):
    for number in range(50):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "f").write_bytes(bytes(8192))
    assert tree.measure(str(tmp_path), enough_bytes=1 << 40, enough_entries=60).num_entries == 61
    assert tree.measure(str(tmp_path), **ENOUGH).num_entries == 100


def test_no_link_is_followed_out_of_the_directory(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(bytes(1 << 20))
    (tmp_path / "top" / "below").mkdir(parents=True)
    for place in ("top", "top/below"):
        (tmp_path / place / "link").symlink_to(tmp_path / "outside")
        (tmp_path / place / "file").symlink_to(tmp_path / "outside" / "kept")
    assert tree.measure(str(tmp_path / "top"), **ENOUGH).num_bytes < 1 << 19
    assert tree.remove(str(tmp_path / "top"))
    assert (tmp_path / "outside" / "kept").stat().st_size == 1 << 20
    (tmp_path / "top").symlink_to(tmp_path / "outside")
    assert not tree.remove(str(tmp_path / "top"))
    assert (tmp_path / "outside" / "kept").exists()


def test_closed_directories_are_opened_by_their_owner(tmp_path):
    for mode in (0, 0o100, 0o300, 0o500):
        (tmp_path / "top" / f"d{mode}" / "e").mkdir(parents=True)
        (tmp_path / "top" / f"d{mode}" / "e" / "f").write_bytes(bytes(8192))
        (tmp_path / "top" / f"d{mode}" / "e").chmod(mode)
        (tmp_path / "top" / f"d{mode}").chmod(mode)
    user = 65534
    root = str(tmp_path / "top")
    if os.getuid() == 0:
        # Root needs no permission: somebody else does.
        for place, names, _ in os.walk(tmp_path):
            for name in ("", *names):
                os.chown(os.path.join(place, name), user, user)
    child = os.fork()
    if child == 0:
        result = 1
        try:
            if os.getuid() == 0:
                # Another user passes through all of pytest's folders.
                for folder in tmp_path.parents:
                    if folder.name.startswith(("pytest-", "popen-")):
                        folder.chmod(0o755)
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            counted = tree.measure(root, enough_bytes=1 << 40, enough_entries=99).num_entries
            result = 0 if counted == 12 and tree.remove(root) else 2
        finally:
            os._exit(result)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not (tmp_path / "top").exists()
