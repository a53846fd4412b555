"""A journal that another version wrote is refused in one sentence, and not written to."""

import sqlite3
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.journal.connection import is_begun
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.journal.schema import SCHEMA_VERSION, own_version
from asyncrl.journal.writer import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal that a run has begun to write."""
    path = tmp_path / "j.sqlite"
    Journal(path).close()
    return path


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_no_file_and_one_without_tables_are_journals_that_no_run_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    assert not is_begun(path) and find_journal(path) is None
    path.touch()
    assert not is_begun(path) and find_journal(path) is None
    with pytest.raises(InputError, match="There is no journal"):
        JournalReader(path)
    Journal(path).close()
    assert is_begun(path) and JournalReader(path).fates() == {}


def test_another_schema_is_refused_with_the_version_that_wrote_it(path: Path) -> None:
    change(
        path,
        "UPDATE meta SET value = '99' WHERE key = 'schema_version'",
        "UPDATE meta SET value = '7.8.9' WHERE key = 'asyncrl_version'",
    )
    before = path.read_bytes()
    for opening in (Journal, JournalReader, find_journal):
        with pytest.raises(InputError) as refused:
            opening(path)
        assert str(refused.value) == (
            f"{path} was written by asyncrl 7.8.9 with schema 99, and asyncrl {own_version()} reads "
            f"schema {SCHEMA_VERSION} only: use the version that began the run, or set run_folder (or name) "
            f"to a new one to start over."
        )
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "schema"),
    [
        ("UPDATE meta SET value = '1' WHERE key = 'schema_version'", "schema 1"),
        ("DROP TABLE meta", "schema unknown"),
    ],
)
def test_a_journal_that_does_not_say_who_wrote_it_is_refused(path: Path, statement: str, schema: str) -> None:
    change(path, "DELETE FROM meta WHERE key = 'asyncrl_version'", statement)
    with pytest.raises(InputError, match=f"written by another version of asyncrl with {schema}, and"):
        JournalReader(path)


def test_a_query_that_is_wrong_is_no_fault_of_the_file(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        JournalReader(path).read("SELECT * FROM nowhere")
