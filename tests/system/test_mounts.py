"""Which file system a folder is on."""

from pathlib import Path

from asyncrl.system.machine import Mount, mount_of

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
