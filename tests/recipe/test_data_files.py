"""Files of rows that are not read are refused with a command that makes readable ones of them."""

import gzip
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from asyncrl.data.files import read_rows
from asyncrl.errors import InputError
from asyncrl.recipe.sources import OTHER_FILES, how_to_convert, is_data_file

TABLE_OF_PANDAS = pickle.dumps(pandas.DataFrame({"prompt": ["1+1="], "answer": [2]}))


@pytest.mark.parametrize(
    ("name", "content", "made"),
    [
        ("a table's rows.pkl", TABLE_OF_PANDAS, "a table's rows.jsonl"),
        ("rows.jsonl.gz", gzip.compress(b'{"prompt": "1+1=", "answer": 2}\n', mtime=0), "rows.jsonl"),
    ],
)
def test_the_command_that_is_named_makes_rows_that_are_read(
    tmp_path: Path, name: str, content: bytes, made: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"expected a \.jsonl") as refused:
        list(read_rows(str(tmp_path / name), key="data.train"))
    command = str(refused.value).partition(" with: ")[2]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})
    (row,) = read_rows(str(tmp_path / made), key="data.train")
    assert row.row == {"prompt": "1+1=", "answer": 2}


@pytest.mark.parametrize("ending", OTHER_FILES)
def test_each_ending_that_holds_rows_has_a_command_and_is_no_hub_id(ending: str) -> None:
    assert is_data_file(f"sub/rows{ending}")
    assert " with: " in how_to_convert(f"sub/rows{ending}")


def test_an_unknown_ending_has_no_command() -> None:
    assert how_to_convert("rows.txt") == ""
