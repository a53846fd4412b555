"""Folders that have their own name only when they are whole."""

from pathlib import Path

from asyncrl.system.files import fresh_part, remove, replace


def test_what_a_killed_writer_left_is_removed_before_writing(tmp_path: Path) -> None:
    (fresh_part(tmp_path / "v1") / "half").write_text("x")
    part = fresh_part(tmp_path / "v1")
    assert list(part.iterdir()) == []
    replace(part, tmp_path / "v1")
    remove(tmp_path / "v1")
    remove(tmp_path / "v1")
    assert list(tmp_path.iterdir()) == []
