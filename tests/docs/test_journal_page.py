"""docs/journal.md names every table and column there is, and each of its queries runs."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.journal.schema import TABLES, create_tables

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_the_tables_and_columns_of_the_schema():
    described = [
        (name, row, re.findall(r"`(\w+)`", columns))
        for name, row, columns in re.findall(r"^\| `(\w+)` \| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE)
    ]
    assert described == [(t.name, t.row, [column.name for column in t.columns]) for t in TABLES]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_page_runs_on_an_empty_journal(query: str):
    with closing(sqlite3.connect(":memory:")) as database:
        create_tables(database)
        cursor = database.execute(query)
        assert cursor.description


def test_there_are_eleven_queries():
    assert len(QUERIES) == 11
