"""Copies of data sources with one more column."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from asyncrl.data.column_copies import copy_name, is_file, source_of_copy, write_copy
from asyncrl.data.files import PublishedRow
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, rows_of
from asyncrl.errors import InputError
from asyncrl.recipe import Source, Verifying

ROWS: list[dict[str, Any]] = [
    {"prompt": "1+1=", "answer": "2", "x": {"é": [1, None]}},
    {"prompt": "2+2=", "answer": "4", "x": {"é": [2, None]}},
    {"prompt": "3+3=", "answer": "6", "x": {"é": [3, None]}},
]


def write(path: Path) -> Source:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps({"data": ROWS}))
    else:
        # A blank line counts as a line.
        path.write_text("\n\n".join(map(json.dumps, ROWS)))
    return Source(path=str(path))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("t.jsonl", (1, 5)), ("t.json", (1, 3)), ("t.parquet", (1, 3)), ("t.ndjson", (1, 5))],
)
def test_a_copy_has_every_row_and_the_new_column(tmp_path: Path, name: str, numbers: tuple[int, int]) -> None:
    source = write(tmp_path / name)
    copy = copy_name(source, "t", "pass_rate")
    target = tmp_path / copy
    first, last = numbers
    write_copy(source, target, "pass_rate", {first: 0.25, last: 1.0}, "data.train")
    if target.suffix == ".parquet":
        found = pyarrow.parquet.read_table(target).to_pylist()
    else:
        found = [json.loads(line) for line in target.read_text().splitlines()]
    rates = (0.25, None, 1.0)
    assert found == [{**row, "pass_rate": rate} for row, rate in zip(ROWS, rates, strict=True)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((name, copy))


def test_a_column_of_that_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1], "pass_rate": ["old"]}), path)
    write_copy(Source(path=str(path)), tmp_path / "u.parquet", "pass_rate", {1: 0.5}, "data.train")
    assert pyarrow.parquet.read_table(tmp_path / "u.parquet").to_pylist() == [{"a": 1, "pass_rate": 0.5}]


def test_the_data_is_never_written_over_and_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "t.jsonl")
    with pytest.raises(InputError, match="would write over .*t.jsonl, the data itself"):
        write_copy(source, tmp_path / "t.jsonl", "x", {}, "data.train")
    with pytest.raises(InputError, match="could not be written: No such file.* --out"):
        write_copy(source, tmp_path / "no" / "t.jsonl", "x", {}, "data.train")


def test_a_folder_becomes_one_file_that_the_same_columns_read(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    days = [
        {"question": f"{n}+1=", "answer": str(n + 1), "day": datetime.date(2026, 1, n + 1)} for n in range(3)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(days), folder / "train.parquet")
    source = Source(path=str(folder), columns="question_answer", split="train", weight=2)
    target = tmp_path / copy_name(source, "published-train", "pass_rate")
    assert not is_file(source) and target.name == "published-train.pass_rate.jsonl"
    copied = write_copy(source, target, "pass_rate", {1: 0.5, 3: 0.0}, "data.train")
    assert copied.nulled == ("day",) and copied.num_unmade == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["pass_rate"] for row in found] == [0.5, None, 0.0] and {row["day"] for row in found} == {None}
    raw = source_of_copy(source, target)
    assert raw == {"path": str(target), "columns": "question_answer", "weight": 2.0}
    rows = list(rows_of([Source(**raw)], "data.train", Verifying(), RowUse(), split="train"))
    assert [row.prompt for row in rows if isinstance(row, Row)] == ["0+1=", "1+1=", "2+1="]


def test_the_copy_of_a_gym_is_a_file_with_the_tasks_that_could_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = [
        {"prompt": "2+3=", "answer": {"entry": 5}, "verifier": "gym"},
        {"unmade": "ValueError: too hard"},
        {"prompt": "3+3=", "answer": {"entry": 6}, "verifier": {"name": "gym", "options": {"source": "x"}}},
    ]
    rows = [PublishedRow(f"gym chain_sum, task {n}", n, row) for n, row in enumerate(made, start=1)]
    monkeypatch.setattr("asyncrl.data.rows.gym_rows", lambda source, key: iter(rows))
    source = Source(gym="chain_sum", weight=1, options={"source": "x"})
    target = tmp_path / copy_name(source, "gym-chain_sum", "pass_rate")
    assert write_copy(source, target, "pass_rate", {1: 0.5, 3: 1.0}, "data.train").num_unmade == 1
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert found == [{**made[0], "pass_rate": 0.5}, {**made[2], "pass_rate": 1.0}]
    assert source_of_copy(source, target) == {"path": str(target), "weight": 1.0}
