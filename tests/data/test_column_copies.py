"""Copies of data files with one more column."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from asyncrl.data.column_copies import copy_name, write_copy
from asyncrl.errors import InputError
from asyncrl.recipe import Source

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
    copy = copy_name(source, "pass_rate")
    assert copy is not None
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


def test_what_is_no_file_has_no_copy_and_the_data_is_never_written_over(tmp_path: Path) -> None:
    assert copy_name(Source(gym="countdown"), "x") is None
    assert copy_name(Source(path=str(tmp_path)), "x") is None
    assert copy_name(Source(path="openai/gsm8k"), "x") is None
    source = write(tmp_path / "t.jsonl")
    with pytest.raises(InputError, match="would write over .*t.jsonl, the data itself"):
        write_copy(source, tmp_path / "t.jsonl", "x", {}, "data.train")
    with pytest.raises(InputError, match="could not be written: No such file.* --out"):
        write_copy(source, tmp_path / "no" / "t.jsonl", "x", {}, "data.train")
