"""docs/journal.md names every table and column there is, and each of its queries runs."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.journal.writer import SCHEMA

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_the_tables_and_columns_of_the_schema():
    described = {
        row[0]: re.findall(r"`(\w+)`", row[1])
        for row in re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", PAGE, re.MULTILINE)
    }
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")] for table in tables
        }
    assert described == columns


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_page_runs_on_an_empty_journal(query: str):
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        cursor = database.execute(query)
        assert cursor.description


def test_there_are_ten_queries():
    assert len(QUERIES) == 10
