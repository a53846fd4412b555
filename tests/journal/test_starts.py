"""Under which recipe each step was trained, and on which data."""

from pathlib import Path

from asyncrl.journal.starts import changed_data, recipes_of_steps, record_data, record_start
from asyncrl.journal.writer import Journal


def test_a_step_was_trained_under_the_last_start_before_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    record_start(journal, 0, "first")
    record_start(journal, 4, "second")
    journal.barrier_blocking()
    # The second start resumed from version 4: step 5 is the first that it made.
    assert recipes_of_steps(journal, 1, 4) == {1: "first"}
    assert recipes_of_steps(journal, 5, 9) == {5: "second"}
    assert recipes_of_steps(journal, 4, 5) == {1: "first", 5: "second"}


def test_a_start_from_an_older_version_takes_the_place_of_what_it_repeats(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    for version, recipe in ((0, "first"), (4, "second"), (2, "third")):
        record_start(journal, version, recipe)
    journal.barrier_blocking()
    assert recipes_of_steps(journal, 1, 2) == {1: "first"}
    assert recipes_of_steps(journal, 3, 9) == {3: "third"}


def test_a_journal_without_starts_says_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    assert recipes_of_steps(journal, 1, 9) == {}


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
