"""What somebody changed about the servers of a run, as its next start finds it."""

from pathlib import Path

from asyncrl.journal.starts import ServerChanges, read_changes, record_change
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Serving

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
        # Another start of the run: somebody else's server listens where a process of the run did.
        ("add", "http://127.0.0.1:5001", False),
    )
    assert found == ServerChanges(
        ("http://127.0.0.1:5001",), frozenset(), frozenset({"http://127.0.0.1:5001"})
    )


def test_a_recipe_that_names_other_servers_has_them_all(tmp_path: Path) -> None:
    changes(tmp_path, NAMED, ("remove", "http://a:1", False), ("add", "http://c:1", False))
    assert changes(tmp_path, Serving(servers=["http://a:1"])) == ServerChanges()
    assert changes(tmp_path, NAMED.model_copy(update={"hedge_seconds": 20.0})).added == ("http://c:1",)
