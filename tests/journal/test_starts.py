"""Under which recipe each step was trained, and on which data."""

from pathlib import Path

from asyncrl.journal.starts import (
    ServerChanges,
    changed_data,
    read_changes,
    recipes_of_steps,
    record_change,
    record_data,
    record_start,
)
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Serving


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


NAMED = Serving(servers=["http://a:1", "http://b:1"])
LOCAL = Serving(num_servers=3)


def changes(folder: Path, serving: Serving, *rows: tuple[str, str, bool]) -> ServerChanges:
    """`rows` of action, URL and whether it is local, recorded under `serving` and read back."""
    journal = Journal(folder / "j.sqlite")
    for action, url, is_local in rows:
        record_change(journal, action, url, is_local=is_local, serving=serving)
    journal.barrier_blocking()
    found = read_changes(journal, serving)
    journal.close()
    return found


def test_a_journal_without_changes_changes_nothing(tmp_path: Path) -> None:
    assert changes(tmp_path, NAMED) == ServerChanges()


def test_the_last_change_of_a_server_holds(tmp_path: Path) -> None:
    found = changes(
        tmp_path,
        NAMED,
        ("remove", "http://a:1", False),
        ("add", "http://d:1", False),
        ("add", "http://c:1", False),
        ("remove", "http://d:1", False),
        ("add", "http://d:1", False),
        ("remove", "http://b:1", False),
        ("add", "http://b:1", False),
    )
    # d came back after c was added, b after it was removed: in the order of the last change.
    assert found.added == ("http://c:1", "http://d:1", "http://b:1")
    assert found.removed == {"http://a:1"}


def test_a_process_of_the_run_that_was_removed_is_not_an_external_server(tmp_path: Path) -> None:
    found = changes(
        tmp_path,
        LOCAL,
        ("remove", "http://127.0.0.1:5001", True),
        ("remove", "http://127.0.0.1:5002", True),
        ("add", "http://127.0.0.1:5002", True),
        # Another start of the run: another program's server listens where a process of the run did.
        ("add", "http://127.0.0.1:5001", False),
    )
    assert found == ServerChanges(
        ("http://127.0.0.1:5001",), frozenset(), frozenset({"http://127.0.0.1:5001"})
    )


def test_a_recipe_that_names_other_servers_has_them_all(tmp_path: Path) -> None:
    changes(tmp_path, NAMED, ("remove", "http://a:1", False), ("add", "http://c:1", False))
    assert changes(tmp_path, Serving(servers=["http://a:1"])) == ServerChanges()
    assert changes(tmp_path, NAMED.model_copy(update={"hedge_seconds": 20.0})).added == ("http://c:1",)
