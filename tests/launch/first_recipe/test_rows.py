"""Things that `--data` may name, and whose columns are recognised."""

import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.launch.first_recipe.rows import find_rows


def write_rows(folder: Path, *rows: dict[str, Any], name: str = "own.jsonl") -> str:
    file = folder / name
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"prompt": "1+1=", "answer": "2"}, "asyncrl"),
        ({"question": "How many?", "answer": "So it is\n#### 2"}, "gsm8k"),
        ({"problem": "How many?", "solution": "It is \\boxed{2}."}, "math_solution"),
        ({"prompt": [{"role": "user", "content": "x"}], "reward_model": {"ground_truth": "2"}}, "verl"),
        ({"target": 98, "nums": [44, 19, 35]}, "countdown"),
        ({"instruction": "Add 1 and 1", "label": "2"}, {"prompt": "instruction", "answer": "label"}),
    ],
)
def test_columns_are_recognised_by_the_first_row(tmp_path: Path, row: dict[str, Any], columns: Any) -> None:
    found = find_rows(write_rows(tmp_path, row))
    assert found.train["columns"] == columns and found.heldout is None
    assert found.has_text is isinstance(row.get("prompt", ""), str)
    assert not found.is_code


def test_rows_that_the_code_verifier_grades_are_code(tmp_path: Path) -> None:
    row = {"text": "Write f", "code": "def f(): return 1", "test_list": ["assert f() == 1"]}
    assert find_rows(write_rows(tmp_path, row)).is_code


def test_a_benchmark_with_training_rows_is_read_from_its_repository_and_its_test_rows_are_held_out() -> None:
    found = find_rows("gsm8k")
    assert found.train["path"] == "openai/gsm8k" and "split" not in found.train
    assert found.heldout == {**found.train, "split": "test"} and found.train["revision"]
    assert find_rows("mbpp").is_code


@pytest.mark.parametrize("name", ["math500", "humaneval", "gpqa"])
def test_a_benchmark_without_training_rows_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"--data is {name}, a benchmark without.*evaluation\.benchmarks"):
        find_rows(name)


def test_what_is_neither_is_refused_with_the_near_name() -> None:
    with pytest.raises(InputError, match="no file here, no hub id.*Did you mean gsm8k"):
        find_rows("gsm8")
    with pytest.raises(InputError, match="does not exist"):
        find_rows("none.jsonl")


def test_columns_that_nothing_recognises_are_listed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows have a, answer: none of them looks like a prompt"):
        find_rows(write_rows(tmp_path, {"a": "x", "answer": "2"}))
    with pytest.raises(InputError, match="none of them looks like an answer"):
        find_rows(write_rows(tmp_path, {"prompt": "x", "b": "2"}))
    with pytest.raises(InputError, match="has no rows"):
        find_rows(write_rows(tmp_path))


def test_a_folder_with_a_split_for_tests_holds_it_out(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for split in ("train", "test"):
        write_rows(tmp_path / "set", {"prompt": "1+1=", "answer": "2"}, name=f"{split}.jsonl")
    found = find_rows(str(tmp_path / "set"))
    assert found.heldout == {**found.train, "split": "test"}
