"""The schema is what is said about it, and SQL stays where it is; a journal that another version wrote is
refused in one sentence, and not written to.
"""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl
from asyncrl.commands.journal import HELP
from asyncrl.errors import InputError
from asyncrl.journal.connection import is_begun
from asyncrl.journal.packing import pack_logprobs, pack_tokens, unpack_logprobs, unpack_tokens
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.journal.schema import SCHEMA_VERSION, TABLES, create_tables, own_version
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


PACKAGE = Path(asyncrl.__file__).parent
SQL = re.compile(
    r"\bsqlite3\b|\bSELECT [\w(*]|\bINSERT (OR \w+ )?INTO\b|\bUPDATE \w+ SET\b|\bDELETE FROM\b|PRAGMA"
)


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    create_tables(connection)
    yield connection
    connection.close()


def test_the_file_has_the_columns_that_the_schema_describes(database: sqlite3.Connection) -> None:
    made = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert made == [table.name for table in TABLES]
    for table in TABLES:
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table.name})")]
        assert names == [*table.columns]


def test_the_file_says_which_schema_and_which_asyncrl_made_it(database: sqlite3.Connection) -> None:
    meta = dict(database.execute("SELECT key, value FROM meta"))
    assert meta == {"schema_version": SCHEMA_VERSION, "asyncrl_version": own_version()}


def test_every_column_says_what_it_means() -> None:
    assert all(meaning for table in TABLES for meaning in table.columns.values())


def test_the_help_of_the_command_names_every_table_and_column() -> None:
    for table in TABLES:
        assert f"{table.name}({', '.join(table.columns)})" in HELP


def test_a_crash_while_the_tables_are_made_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    connection = sqlite3.connect(path)
    # The last table is there already: making it fails after all the others.
    connection.execute(f"CREATE TABLE {TABLES[-1].name} (x)")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        create_tables(connection)
    made = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    connection.close()
    assert made == [TABLES[-1].name]


def test_sql_is_in_the_journals_package_alone() -> None:
    elsewhere = {path for path in PACKAGE.rglob("*.py") if PACKAGE / "journal" not in path.parents}
    found = {path.relative_to(PACKAGE).as_posix() for path in elsewhere if SQL.search(path.read_text())}
    # The help of `asyncrl journal` shows a query to copy.
    assert found == {"commands/journal.py"}
    assert len([path for path in (PACKAGE / "journal").rglob("*.py") if SQL.search(path.read_text())]) > 5


def test_blobs_are_little_endian_and_round_trip() -> None:
    assert pack_tokens([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert unpack_tokens(pack_tokens([0, 7, 2**31 - 1])) == [0, 7, 2**31 - 1]
    assert unpack_logprobs(pack_logprobs([-0.5, -1.25])) == [-0.5, -1.25]
