"""On which data a run works: the digests of its files are in the journal."""

from pathlib import Path

from asyncrl.journal.starts import changed_data, record_data
from asyncrl.journal.writer import Journal


def test_a_file_that_changed_between_two_starts_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    first = {"data.train": "a", "data.heldout": "b"}
    assert changed_data(journal, first) == []
    record_data(journal, first)
    journal.barrier_blocking()
    assert changed_data(journal, first) == []
    assert changed_data(journal, {**first, "data.train": "c"}) == ["data.train"]
    # Asking changes nothing.
    assert changed_data(journal, {**first, "data.train": "c"}) == ["data.train"]
    journal.close()
