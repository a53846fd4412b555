"""A file is replaced as a whole or stays what it was."""

from pathlib import Path

import pytest
from fakes.small_disk import refused_writes

from asyncrl.system.files import write_whole


def test_a_full_disk_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "report.json", "old")
    with refused_writes(), pytest.raises(OSError):
        write_whole(tmp_path / "report.json", "new")
    assert (tmp_path / "report.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    write_whole(tmp_path / "report.json", "ä")
    assert (tmp_path / "report.json").read_text(encoding="utf-8") == "ä"
