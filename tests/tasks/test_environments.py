"""Rows that name environments: conversations are opened when data is read, and rows stay with their tasks."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.model_folder import write_tokenizer

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.records import EnvironmentSpec, Task
from asyncrl.tasks.order import TaskOrder
from asyncrl.tasks.task_list import TaskSet, read_train_tasks
from asyncrl.tasks.verifier_cache import VerifierCache

ENVIRONMENT = '''
from verifiers.verdict import correct

class Base:
    def __init__(self, *, add: int = 0): self.add = add
    def step(self, text): ...

class Sums(Base):
    """Asks for the sum of a row's two numbers, and a number of its own."""
    def start(self, row):
        with open(__file__.replace("own.py", "starts"), "a") as file:
            print(row["a"], row["b"], file=file)
        return [{"role": "user", "content": f"{row['a']}+{row['b']}+{self.add}="}]

class Later(Base):
    async def start(self, row): return f"{row['a']}+1="

class Silent(Base):
    def start(self, row): return None

class Empty(Base):
    def start(self, row): return []

class Raises(Base):
    def start(self, row): return row["c"]

class Number(Base):
    def start(self, row): return 7

class Takes:
    def parse_reference(self, raw): return raw
    def verify(self, response, reference, task): return correct()
'''
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def read(folder: Path, *rows: dict[str, Any], **sections: Any) -> TaskSet:
    (folder / "own.py").write_text(ENVIRONMENT)
    path = folder / "train.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "1+1=", "answer": "2", **row}) for row in rows))
    raw = {
        "name": "x",
        "model": {"path": "m"},
        "data": {"train": str(path)},
        "evaluation": {"every_steps": 0},
    }
    recipe = Recipe.model_validate({**raw, **sections})
    model = write_tokenizer(folder / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return read_train_tasks(recipe, TextCodec(model), VerifierCache(folder), 64)


def tasks(folder: Path, *rows: dict[str, Any], **sections: Any) -> list[Task]:
    return list(read(folder, *rows, **sections).tasks)


SUMS = {"environment": "./own.py:Sums"}


def test_the_environments_messages_are_the_prompt_and_the_row_stays(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, {"a": 3, "b": 4}, turns=SUMS)
    assert task.prompt == "3+4+0="
    assert task.messages == ({"role": "user", "content": "3+4+0="},)
    assert task.environment == EnvironmentSpec("./own.py:Sums")
    assert task.row == {"prompt": "1+1=", "answer": "2", "a": 3, "b": 4}


def test_an_environment_is_asked_once_for_each_row(tmp_path: Path) -> None:
    found = read(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 2}, turns=SUMS).tasks
    assert [found[1].prompt, found[0].prompt, found[1].prompt] == ["1+2+0=", "1+1+0=", "1+2+0="]
    lines = (tmp_path / "starts").read_text().splitlines()
    assert lines == ["1 1", "1 2"]


def test_a_row_may_name_its_own_environment_with_options(tmp_path: Path) -> None:
    named = {"name": "./own.py:Sums", "options": {"add": 5}}
    silent, own, later, usual = tasks(
        tmp_path,
        {"environment": "./own.py:Silent"},
        {"a": 1, "b": 2, "environment": named},
        {"a": 6, "environment": "./own.py:Later"},
        {"a": 2, "b": 2},
        turns={"environment": {"name": "./own.py:Sums", "options": {"add": 1}}},
    )
    assert (silent.prompt, silent.messages) == ("1+1=", ())
    assert own.prompt == "1+2+5=" and own.environment == EnvironmentSpec("./own.py:Sums", {"add": 5})
    assert (later.prompt, usual.prompt) == ("6+1=", "2+2+1=")
    assert usual.environment == EnvironmentSpec("./own.py:Sums", {"add": 1})


@pytest.mark.parametrize(
    ("row", "turns", "said"),
    [
        ({"environment": "e"}, {}, r'jsonl:1: the row names the environment "e".*Set turns.environment'),
        ({"environment": 7}, SUMS, r'jsonl:1: "environment" is \'7\', expected a name or'),
        ({"environment": {"name": "e", "option": {}}}, SUMS, r'jsonl:1: "environment" is'),
        (
            {"environment": "./own.py:Raises"},
            SUMS,
            r"jsonl:1: .*start\(row\) raised KeyError: 'c' .*own\.py:",
        ),
        ({"environment": "./own.py:Number"}, SUMS, r"jsonl:1: .*start returned"),
        ({"environment": "./own.py:Empty"}, SUMS, r"jsonl:1: .*start returned no messages"),
        ({"environment": "./own.py:Sum"}, SUMS, r"jsonl:1: .*has no class 'Sum'.*'Sums'"),
        (
            {"environment": {"name": "./own.py:Sums", "options": {"ad": 1}}},
            SUMS,
            r"jsonl:1: .*no option 'ad'",
        ),
        ({}, SUMS, r"jsonl:1: .*start\(row\) raised KeyError: 'a'"),
    ],
)
def test_a_row_whose_environment_cannot_open_it_is_named(
    tmp_path: Path, row: dict[str, Any], turns: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, row, turns=turns)


def test_rows_keep_columns_only_where_something_reads_them(tmp_path: Path) -> None:
    plain, takes = tasks(tmp_path, {"a": 1}, {"a": 1, "verifier": "./own.py:Takes"})
    assert (plain.row, plain.environment, plain.messages) == ({}, None, ())
    assert takes.row == {"prompt": "1+1=", "answer": "2", "a": 1, "verifier": "./own.py:Takes"}
    (called,) = tasks(tmp_path, {"a": 1}, turns={"tools": ["calculator"]})
    assert called.row["a"] == 1 and called.environment is None
    asked = [{"role": "user", "content": "2+2="}]
    (acted,) = tasks(tmp_path, {"a": 1, "prompt": asked}, agent={"command": ["true"]})
    assert acted.row["a"] == 1 and acted.messages == tuple(asked)


def test_a_column_that_nothing_reads_costs_no_byte(tmp_path: Path) -> None:
    few = read(tmp_path, {"x": "y"}).tasks._packed.rows
    many = read(tmp_path, {"x": "y" * 10_000}).tasks._packed.rows
    assert len(few) == len(many)


def test_rows_that_differ_in_columns_alone_are_different_tasks_of_an_environment(tmp_path: Path) -> None:
    rows = [{"secret": 1}, {"secret": 2}, {"secret": 1}]
    found = tasks(tmp_path, *rows, turns={"environment": "./own.py:Silent"})
    assert [task.row["secret"] for task in found] == [1, 2]
    assert len(tasks(tmp_path, *rows)) == 1


def test_an_unfinished_task_whose_row_moved_is_found_by_its_prompt_unless_columns_differ(
    tmp_path: Path,
) -> None:
    sections = {"turns": {"environment": "./own.py:Silent"}}
    rows = [{"secret": 1}, {"secret": 2}, {"prompt": "2+2=", "answer": "4", "secret": 3}]
    order = TaskOrder(read(tmp_path, *rows, **sections).tasks, seed=1, is_shuffled=False)
    assert order.find("train:2", "1+1=").row["secret"] == 2
    assert order.find("train:9", "2+2=").row["secret"] == 3
    with pytest.raises(InputError, match="different answers or columns"):
        order.find("train:9", "1+1=")


def test_columns_that_are_no_json_are_left_out(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "own.py").write_text(ENVIRONMENT)
    row = {
        "prompt": "1+1=",
        "answer": "2",
        "verifier": "./own.py:Takes",
        "raw": b"\x00",
        "x": float("nan"),
        "y": 1.5,
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "train.parquet")
    raw = {"name": "x", "model": {"path": "m"}, "data": {"train": str(tmp_path / "train.parquet")}}
    recipe = Recipe.model_validate({**raw, "evaluation": {"every_steps": 0}})
    codec = TextCodec(write_tokenizer(tmp_path / "model"))
    (task,) = read_train_tasks(recipe, codec, VerifierCache(tmp_path), 64).tasks
    assert task.row == {"prompt": "1+1=", "answer": "2", "verifier": "./own.py:Takes", "y": 1.5}
