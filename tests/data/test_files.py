"""Rows of every format in which data is published, also of a hub."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fakes.hub import running_hub

from asyncrl.data.columns import Columns
from asyncrl.data.files import read_rows
from asyncrl.errors import InputError

ROWS = [{"question": "1+1", "answer": {"value": "2"}}, {"question": "é\u2028x", "answer": {"value": "3"}}]


def write(path: Path, rows: list[dict] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_a_file_gives_its_rows_and_where_they_stand(name: str, tmp_path: Path):
    path = write(tmp_path / name)
    found = list(read_rows(str(path), key="data.train"))
    assert [found_row.row for found_row in found] == ROWS
    assert found[1][0] == (f"{path}:2" if name.endswith("jsonl") else f"{path}, row 2")


def test_lines_of_json_may_be_called_json(tmp_path: Path):
    path = write(tmp_path / "rows.jsonl").rename(tmp_path / "rows.json")
    assert [found.where for found in read_rows(str(path), key="data.train")] == [f"{path}:1", f"{path}:2"]


def test_json_may_name_its_list_of_rows(tmp_path: Path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"version": 1, "data": ROWS}))
    assert [found.row for found in read_rows(str(path), key="data.train")] == ROWS


TABLE = 'prompt,answer,note\n"1,2",007,NA\n"a ""b""\nc",1.50,\n'
TEXTS = [
    {"prompt": "1,2", "answer": "007", "note": "NA"},
    {"prompt": 'a "b"\nc', "answer": "1.50", "note": ""},
]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
def test_every_value_of_csv_is_its_text_in_a_file_and_in_a_folder(cache: Path, tmp_path: Path, name: str):
    text = "\n".join("\t".join(("p", "007", "1.50")) for _ in "ab") if name.endswith("tsv") else TABLE
    rows = [{"p": "p", "007": "007", "1.50": "1.50"}] if name.endswith("tsv") else TEXTS
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / name).write_text(text, encoding="utf-8-sig")
    of_file = list(read_rows(str(folder / name), key="data.train"))
    assert [found.row for found in of_file] == rows and of_file[
        -1
    ].where == f"{folder / name}, row {len(rows)}"
    assert list(read_rows(str(folder), key="data.train")) == of_file
    with gzip.open(folder / f"{name}.gz", "wt") as file:
        file.write(text)
    both = list(read_rows(str(folder), key="data.train"))
    assert [found.row for found in both] == rows * 2 and [found.number for found in both] == [
        *range(1, len(both) + 1)
    ]
    with pytest.raises(InputError, match="data.train is published, whose split 'test' cannot be read"):
        list(read_rows(str(folder), key="data.train", split="test"))


def test_csv_as_a_clumsy_editor_leaves_it_is_refused_with_its_place(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("a,a\n1,2\n")
    with pytest.raises(InputError, match="several columns are called a. Rename them."):
        list(read_rows(str(path), key="data.train"))
    path.write_text(f"a,b\n{'x' * 200_000},2\n1\n")
    with pytest.raises(InputError, match="row 2 has another number of values than the header, which has 2"):
        list(read_rows(str(path), key="data.train"))


@pytest.mark.parametrize("name", ["more.csv", "train.csv", "sub/more.parquet", "more.xlsx"])
def test_a_folder_leaves_no_format_out_without_a_word(cache: Path, tmp_path: Path, name: str):
    folder = tmp_path / "published"
    write(folder / "train.jsonl")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(TABLE)
    (folder / "notes.txt").write_text("none")
    with pytest.raises(
        InputError, match=rf"where {name} would not be read beside train.jsonl: .* list the files"
    ):
        list(read_rows(str(folder), key="data.train"))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: train.jsonl\n---\n"
    )
    assert [found.row for found in read_rows(str(folder), key="data.train")] == ROWS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_a_folder_has_splits_and_configurations(cache: Path, tmp_path: Path):
    folder = tmp_path / "published"
    write(folder / "main" / "train-00000-of-00001.parquet")
    write(folder / "main" / "test-00000-of-00001.parquet", ROWS[:1])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n"
        "  - split: train\n    path: main/train-*\n  - split: test\n    path: main/test-*\n---\n"
    )
    train = list(read_rows(str(folder), key="data.train", config="main"))
    assert [found.row for found in train] == ROWS and train[1][0] == "published train, row 2"
    assert len(list(read_rows(str(folder), key="data.heldout", config="main", split="test"))) == 1
    with pytest.raises(InputError, match=r"data\.train is published, .*'valid' of 'main'"):
        list(read_rows(str(folder), key="data.train", config="main", split="valid"))


def test_rows_that_the_library_decodes_are_those_that_are_read_as_columns(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "published" / "train.parquet")
    for decodes in (False, True):
        monkeypatch.setattr("datasets.features.features.require_decoding", lambda _, answer=decodes: answer)
        assert [found.row for found in read_rows(str(tmp_path / "published"), key="data.train")] == ROWS


@pytest.mark.parametrize("name", ["published/train.parquet", "rows.parquet"])
def test_only_columns_that_a_mapping_needs_are_read_of_parquet(cache: Path, tmp_path: Path, name: str):
    path = write(tmp_path / name, [{**row, "extra": {"index": 1}} for row in ROWS])
    path = path.parent if path.parent.name == "published" else path
    found = list(read_rows(str(path), key="data.train", make=Columns("question", "answer.value")))
    assert [one.row for one in found] == ROWS
    (other, _) = read_rows(str(path), key="data.train", make=Columns("problem", "answer"))
    assert set(other.row) == {"question", "answer", "extra"}


def test_a_folder_may_keep_datasets_apart_by_folders_alone(cache: Path, tmp_path: Path):
    for number, level in enumerate(("easy", "hard")):
        write(tmp_path / "published" / level / "train.parquet", ROWS[number:])
    (tmp_path / "published" / "hard" / "test.parquet").write_bytes(
        (tmp_path / "published" / "easy" / "train.parquet").read_bytes()
    )
    folder = str(tmp_path / "published")
    train = list(read_rows(folder, key="data.train", folder="hard"))
    assert [found.row for found in train] == ROWS[1:] and train[0].where == "published/hard train, row 1"
    assert len(list(read_rows(folder, key="data.heldout", folder="hard", split="test"))) == 2
    with pytest.raises(InputError, match=r"has no folder medium\. It has easy, hard\."):
        list(read_rows(folder, key="data.train", folder="medium"))


SCRIPT = """
import sys
from asyncrl.data.files import read_rows
from asyncrl.errors import InputError
try:
    for where, _, row in read_rows("tiny/rows", key="data.train", split=sys.argv[1]):
        print(where, row["question"])
except InputError as error:
    print("InputError:", error)
"""


def test_a_repository_of_a_hub_is_fetched_once(tmp_path: Path):
    folder = tmp_path / "published"
    write(folder / "train.jsonl", ROWS[:1])
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}

    def said(url: str, split: str = "train") -> str:
        command = [sys.executable, "-c", SCRIPT, split]
        variables = {**environment, "HF_ENDPOINT": url}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout

    with running_hub(tiny__rows=folder) as hub:
        assert said(hub.url) == "tiny/rows train, row 1 1+1\n"
    # The hub is gone; what was fetched is still there.
    assert said(hub.url) == "tiny/rows train, row 1 1+1\n"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "rows.txt",
            b"",
            "expected a .jsonl, .json, .csv, .tsv or .parquet file, a folder of them, or a hub id",
        ),
        ("rows.jsonl", b'{"a": 1}\n{"a"', "rows.jsonl:2: not JSON"),
        ("rows.jsonl", b"[1]", "rows.jsonl:1 is a list, expected an object"),
        ("rows.jsonl", b'{"a": "\\ud800"}', "half of a surrogate pair"),
        ("rows.jsonl", '{"a": 1, "b": 2}'.encode("utf-16"), "Convert it with: iconv -f UTF-16 -t UTF-8"),
        ("rows.jsonl", "a,b".encode("utf-16-be"), "Convert it with: iconv -f UTF-16 -t UTF-8"),
        ("rows.jsonl", b"a,b", "rows.csv."),
        ("rows.json", b"{}", "holds an object with keys, expected a list of rows"),
        ("rows.parquet", b"PAR1 no", "cannot be read as parquet"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    name: str, content: bytes, sentence: str, tmp_path: Path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        list(read_rows(str(tmp_path / name), key="data.train"))
    assert sentence in str(refused.value)
    for suffix in ("jsonl", "json", "parquet"):
        with pytest.raises(InputError, match="data.train is .* does not exist"):
            list(read_rows(str(tmp_path / f"none.{suffix}"), key="data.train"))


def test_a_folder_may_be_called_like_a_file(tmp_path: Path):
    folder = tmp_path / "rows.csv"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "1+1="}\n')
    assert [row.row for row in read_rows(str(folder), key="data.train")] == [{"prompt": "1+1="}]
