"""Seconds of earlier times: an estimate's memory, which nothing depends on."""

from pathlib import Path

import pytest

from asyncrl.observe.terminal import stage
from asyncrl.observe.terminal.stage import PastSeconds


def test_the_median_of_the_last_times_is_expected(tmp_path: Path) -> None:
    past = PastSeconds(tmp_path / "past.json")
    assert past.expected("start") is None
    for seconds in (100.0, 100.0, 100.0, 9.0, 10.0, 12.0, 11.0, 10.5):
        past.note("start", seconds)
    assert PastSeconds(tmp_path / "past.json").expected("start") == 10.5


def test_things_noted_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "MOST_THINGS", 2)
    past = PastSeconds(tmp_path / "past.json")
    for like in ("a", "b", "a", "c"):
        past.note(like, 1.0)
    assert [past.expected(like) for like in "abc"] == [1.0, None, 1.0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"start": "soon"}', '{"start": ["soon"]}', "\udc80"])
def test_a_damaged_file_is_no_estimate_and_is_written_again(tmp_path: Path, content: str) -> None:
    file = tmp_path / "past.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    past = PastSeconds(file)
    assert past.expected("start") is None
    past.note("start", 2.0)
    assert past.expected("start") == 2.0


def test_where_nothing_can_be_written_there_is_no_estimate_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    past = PastSeconds(tmp_path / "cache" / "past.json")
    past.note("start", 2.0)
    assert past.expected("start") is None
