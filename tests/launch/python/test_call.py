"""The files of a call: what it says is written once, and said again it is the same run."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from fakes.commands import Command

from asyncrl.errors import InputError
from asyncrl.launch.python.call import (
    CallFiles,
    is_as_written,
    rows_of,
    set_apart,
    source_of_data,
    verifier_name,
)
from asyncrl.launch.python.carried import Origin
from asyncrl.launch.python.program import Program, _stop_attached
from asyncrl.system.streams import VARIABLE, Caller, take_caller

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(10)]


def is_sum(response: str, reference: str) -> bool:
    return response == reference


@pytest.fixture
def files(tmp_path: Path) -> CallFiles:
    return CallFiles(tmp_path / "run" / "call")


def written(files: CallFiles) -> dict[str, str]:
    files.write()
    return {path.name: path.read_text() for path in files.folder.iterdir()}


def test_rows_of_any_kind_are_the_same_file(files: CallFiles) -> None:
    numbers = [{**row, "answer": numpy.str_(row["answer"])} for row in ROWS]
    places = {
        source_of_data(rows, "data", files) for rows in (ROWS, iter(ROWS), pandas.DataFrame(ROWS), numbers)
    }
    assert len(places) == 1
    (text,) = written(files).values()
    assert [json.loads(line) for line in text.splitlines()] == ROWS


def test_a_place_or_a_source_stays_what_it_is(files: CallFiles) -> None:
    assert source_of_data("openai/gsm8k", "data", files) == "openai/gsm8k"
    assert source_of_data({"path": "x.jsonl", "columns": "gsm8k"}, "data", files)["columns"] == "gsm8k"
    assert written(files) == {}


def test_a_sentence_about_a_file_of_the_call_is_one_about_the_call(files: CallFiles) -> None:
    rows, verifier = source_of_data(ROWS, "heldout", files), verifier_name(is_sum, files)
    assert files.as_said(f'{rows}:3: no "prompt"') == 'heldout, row 3: no "prompt"'
    assert files.as_said(f'the verifier "{verifier}" fails') == 'the verifier "is_sum" fails'
    assert files.as_said(f"data.heldout is {rows}.") == "data.heldout is heldout."
    file = verifier.removesuffix(":Verifier")
    files.origins[file] = [Origin(first_line=3, num_lines=4, file="mine.py", file_line=10)]
    assert files.as_said(f"raised KeyError ({file}:5), then ({file}:9)") == (
        f"raised KeyError (mine.py:12), then ({file}:9)"
    )


def test_a_missing_value_of_a_data_frame_is_none(files: CallFiles) -> None:
    source_of_data(pandas.DataFrame([*ROWS, {"prompt": "1", "level": 2.0}]), "data", files)
    (text,) = written(files).values()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["level"] is None and lines[-1] == {"prompt": "1", "answer": None, "level": 2.0}


def test_other_rows_are_another_file_and_a_changed_file_is_noticed(files: CallFiles) -> None:
    one, two = (Path(source_of_data(rows, "data", files)) for rows in (ROWS, ROWS[1:]))
    files.write()
    assert one != two and is_as_written(one)
    one.write_text("{}\n")
    assert not is_as_written(one)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([ROWS[0], "1+1="], "data, row 2 is '1+1=', expected a mapping such as"),
        ([{"prompt": object()}], "data, row 1 cannot be written as JSON: it holds an object of object."),
    ],
)
def test_what_is_no_row_is_said_with_its_number(files: CallFiles, rows: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("+", r"\+")):
        source_of_data(rows, "data", files)


def test_rows_set_apart_are_chosen_by_the_seed_and_keep_their_order() -> None:
    others, apart = set_apart(rows_of(ROWS, "data"), 3, seed=0)
    assert len(apart) == 3 and sorted([*others, *apart], key=ROWS.index) == ROWS
    assert others == sorted(others, key=ROWS.index) and apart == sorted(apart, key=ROWS.index)
    assert set_apart(ROWS, 3, seed=0) == (others, apart) != set_apart(ROWS, 3, seed=1)


class Stopping:
    """Process that needs a while to stop: it ends while it is waited for."""

    pid = 7

    def __init__(self, *_: Any, **__: Any) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        self.code = 130
        return self.code


def test_a_script_at_its_end_asks_each_of_its_programs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run that is asked again leaves its step undone.
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: asked.append((pid, number)))
    monkeypatch.setattr(subprocess, "Popen", Stopping)
    programs = [Program(["train"], tmp_path / "output") for _ in range(2)]
    detached = Program(["train"], tmp_path / "output", is_detached=True)
    _stop_attached()
    assert asked == [(7, signal.SIGINT)] * 2
    assert not any(program.is_running() for program in programs) and detached.is_running()


def test_a_caller_is_taken_out_of_the_environment(tmp_path: Path) -> None:
    caller = Caller(7, tmp_path / "a file")
    environment = {"HOME": "/", **caller.variable()}
    assert take_caller(environment) == caller and environment == {"HOME": "/"}
    assert take_caller(environment) is None


def test_a_refusal_is_in_the_callers_file_without_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    file = tmp_path / "refusal"
    for name, value in Caller(0, file).variable().items():
        monkeypatch.setenv(name, value)
    said = command("status", tmp_path, code=2).err
    assert said.startswith(f"{file.read_text()}\nRead: ")
    assert VARIABLE not in os.environ
