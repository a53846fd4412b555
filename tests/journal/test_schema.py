"""The schema: what the file holds is what is said about it, numbers too; SQL stays where the schema is."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl
from asyncrl.commands.journal import HELP
from asyncrl.journal.packing import pack_logprobs, pack_tokens, unpack_logprobs, unpack_tokens
from asyncrl.journal.schema import SCHEMA_VERSION, TABLES, create_tables, own_version

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
