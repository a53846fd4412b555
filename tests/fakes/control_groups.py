"""Control groups of Linux as files, and a machine of 64 GiB around them."""

from pathlib import Path

import psutil
import pytest

GIB = 2**30


class Groups:
    """Files where /proc and /sys/fs/cgroup would have them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory of a machine with 64 GiB, of which 40 are available."""
        self.own, self.mounted = folder / "cgroup", folder / "mounted"
        self.own.write_text("")
        machine = psutil.virtual_memory()._replace(total=64 * GIB, available=40 * GIB)
        monkeypatch.setattr("asyncrl.system.machine.psutil.virtual_memory", lambda: machine)

    def process_is_in(self, *lines: str) -> None:
        self.own.write_text("".join(f"{line}\n" for line in lines))

    def make(self, path: str, **files: object) -> None:
        group = self.mounted / path
        group.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (group / name.replace("memory_", "memory.")).write_text(f"{value}\n")

    def make_v2(self, path: str, limit: int | str, used: int, cached: int = 0) -> None:
        stat = f"anon 1\ninactive_file {cached}\nactive_file 5"
        self.make(path, memory_max=limit, memory_current=used, memory_stat=stat)
