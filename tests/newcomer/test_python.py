"""Mistakes of users of the Python interface: every parameter with values of every kind, and a table of what
no rule makes.

Each is an InputError with a sentence before any process starts, and leaves no files. What the command line's
own process says is asked of a real one.
"""

import asyncio
import datetime
import functools
import inspect
import linecache
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import yaml
from fakes.graders import is_right, raises, says_text
from fakes.newcomer import RECIPE, begin_run, write_project

import asyncrl
from asyncrl.errors import InputError
from asyncrl.launch.python import train as calls
from asyncrl.launch.python.call import CallFiles, verifier_name
from asyncrl.launch.python.live import Table
from asyncrl.launch.python.program import Program
from asyncrl.launch.python.run import Run
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(10)]


class Started(Exception):
    """The call was not refused: it would start a process now."""


class HasNoWords:
    def __repr__(self) -> str:
        raise RuntimeError("it has no words")


class Judge:
    """Called as a function is, and none."""

    def __call__(self, response: str, reference: str) -> bool:
        return response == reference


class NoVerify:
    def parse_reference(self, raw: object) -> object:
        return raw


def values() -> dict[str, Any]:
    """A value of each kind that Python has, and the odd ones of kinds that are expected somewhere."""
    itself: dict[str, Any] = {}
    itself["x"] = itself
    return {
        "True": True, "False": False, "zero": 0, "below zero": -1, "a huge number": 10**5000,
        "a fraction": 1.5,
        "not a number": float("nan"), "without end": float("inf"), "a complex number": 1j,
        "empty text": "", "a digit as text": "10", "NUL": "a\0b", "half a pair": "\ud800", "bytes": b"x",
        "a home that is not there": "~no_such_user_here/x", "a long name": "x" * 5000,
        "an empty list": [], "numbers": [1], "half a pair in a list": ["\ud800"], "a set": {1},
        "a range": range(3),
        "a number for a key": {1: 2}, "itself": itself, "an unknown key": {"frobnicate": 1},
        "half a pair in a row": [{"prompt": "\ud800", "answer": "1"}], "a key that is no text": [{1: 2}],
        "a path with NUL": Path("x\0"), "an iterator of nothing": iter(()),
        "an iterator of numbers": iter([1]),
        "a moment": datetime.datetime(2026, 1, 1), "a function": is_right, "a lambda": lambda a, b: True,
        "a builtin": len, "a class": NoVerify, "a callable object": Judge(),
        "a bound method": Judge().__call__,
        "a partial": functools.partial(is_right), "a module": os, "dots": ..., "an error": ValueError("x"),
        "an object": object(), "an object without words": HasNoWords(),
    }  # fmt: skip


FITTING = {
    # Parameter -> values that another rule, or the command line's process, looks at.
    "model": {"a digit as text", "a long name"},
    "heldout": {"a digit as text", "a long name", "an object of a split"},
    "data": set(),
    "verifier": {"a digit as text", "a function", "a long name", "a home that is not there"},
    "algorithm": set(),
    "steps": set(),
    "name": {"a digit as text"},
    "folder": {"a digit as text"},
    "recipe": set(),
    "detach": {"True", "False"},
    "quiet": {"True", "False"},
    "seed": {"zero"},
    "rollout": set(),
    "stage": set(),
}
WITHOUT_NAME = {"itself", "a home that is not there", "a long name"}
"""Said of the path or the call, wherever it is."""
PAIRS = [(parameter, kind) for parameter in FITTING for kind in values()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*words: object, **options: object) -> None:
        raise Started

    monkeypatch.setattr(calls, "Program", start)


def refused(call: Callable[..., Any], *args: Any, **named: Any) -> str:
    """The sentence; a call that is not refused raises Started or returns, and fails the test."""
    with pytest.raises(InputError) as error:
        call(*args, **named)
    assert str(error.value).strip() and "Traceback" not in str(error.value)
    return str(error.value)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def files_of(folder: Path) -> list[Path]:
    """Reading a journal makes SQLite create its two companions."""
    return sorted(path for path in files(folder) if path.suffix not in (".sqlite-shm", ".sqlite-wal"))


def call_with(**changes: Any) -> dict[str, Any]:
    good = {"model": "model", "data": ROWS, "heldout": 3, "verifier": is_right, "steps": 2}
    return {**good, "algorithm": "dapo", "quiet": True, **changes}


def test_every_parameter_is_in_the_table_of_kinds() -> None:
    sections = {"seed", "rollout", "stage"}
    assert {*inspect.signature(asyncrl.train).parameters} - {"sections"} == {*FITTING} - sections
    assert sections <= set(Recipe.model_fields)


@pytest.mark.usefixtures("starts_nothing")
def test_an_argument_of_a_wrong_kind_is_refused_and_leaves_no_files(here: Path) -> None:
    let_through = []
    for parameter, kind in PAIRS:
        try:
            said = refused(asyncrl.train, **call_with(**{parameter: values()[kind]}))
        except Started:
            for made in here.iterdir():
                shutil.rmtree(made)
            if kind not in FITTING[parameter]:
                let_through.append((parameter, kind))
            continue
        assert kind not in FITTING[parameter], (parameter, kind, said)
        assert parameter in said or kind in WITHOUT_NAME, (parameter, kind, said)
        assert files(here) == [], (parameter, kind)
    assert let_through == []


TABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no rows": ({"data": []}, "data has no rows"),
    "one row": ({"data": ROWS[0], "heldout": None}, "data is a mapping with prompt, answer, expected rows"),
    "columns": ({"data": {"prompt": [], "answer": []}, "heldout": None}, "a list of rows"),
    "the splits of a data set": ({"data": {"train": ROWS}, "heldout": None}, "one split of a data set"),
    "a list of paths": ({"data": ["train.jsonl"]}, "data, row 1 is 'train.jsonl', expected a mapping"),
    "more held-out rows than rows": ({"heldout": 10}, "or a number below that of data (10)"),
    "held-out rows that are True": ({"heldout": True}, "heldout is True, expected rows"),
    "a misspelt argument": ({"stpes": 3}, "asyncrl.train has no argument stpes. Did you mean steps?"),
    "a misspelt section": ({"rolout": {}}, "has no argument rolout. Did you mean rollout?"),
    "a key without its section": ({"num_steps": 3}, "Did you mean trainer.num_steps?"),
    "another argument": ({"frobnicate": 1}, "It takes model, data, heldout"),
    "a key in another section": ({"trainer": {"temperature": 1.0}}, "Did you mean rollout.temperature"),
    "a misspelt recipe": ({"recipe": "r1_zero_arithmetic_cup"}, "Did you mean r1_zero_arithmetic_cpu?"),
    "no steps": ({"steps": 0}, "steps is 0, expected a whole number above 0."),
    "steps twice": ({"trainer": {"num_steps": 3}}, "steps is given, and trainer.num_steps is 3, too."),
    "verifiers twice": ({"verifying": {"default": "math"}}, "verifying.default is 'math', too."),
    "a run folder": ({"run_folder": "runs/x"}, "run_folder is given, but a call makes it"),
    "a path for a name": ({"name": "runs/x"}, "expected the name of a folder, without /"),
    "a name above the folder": ({"name": ".."}, "expected the name of a folder, without /"),
    "a lambda": ({"verifier": lambda response, reference: True}, "verifier is a lambda"),
    "a builtin": ({"verifier": len}, "expected a name, a function (response, reference), or a class"),
    "an object that is called": ({"verifier": Judge()}, "expected a name, a function"),
    "a class that grades nothing": ({"verifier": NoVerify}, "the class NoVerify without verify"),
    "no reference": ({"verifier": lambda response: True}, "expected (response, reference)"),
}  # fmt: skip


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize("name", TABLE)
def test_the_call_says(name: str, here: Path) -> None:
    changes, sentence = TABLE[name]
    assert sentence in refused(asyncrl.train, **call_with(**changes))
    assert files(here) == []


@pytest.mark.usefixtures("starts_nothing")
def test_a_good_call_would_start(here: Path) -> None:
    frame = pandas.DataFrame([*ROWS, {**ROWS[0], "level": 1.0}])
    for changes in ({}, {"steps": numpy.int64(3)}, {"seed": numpy.int64(1)}, {"data": frame}):
        with pytest.raises(Started):
            asyncrl.train(**call_with(**changes))
    (text, *_) = (file.read_text() for file in (here / "runs" / "model-1").rglob("recipe-*.yaml"))
    assert yaml.safe_load(text)["trainer"]["num_steps"] == 2


def async_one() -> Any:
    async def waits(response: str, reference: str) -> bool:
        return True

    return waits


def generator() -> Any:
    def yields(response: str, reference: str) -> Iterator[bool]:
        yield True

    return yields


def closed_over_a_lock() -> Any:
    lock = threading.Lock()

    def locks(response: str, reference: str) -> bool:
        with lock:
            return True

    return locks


def closed_over_nothing_yet() -> Any:
    def early(response: str, reference: str) -> bool:
        return later(response)

    if not early.__name__:
        later = len  # type: ignore[unreachable]
    return early


def wrong_arity() -> Any:
    def three(response: str, reference: str, more: str) -> bool:
        return True

    return three


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (async_one, "waits is async"),
        (generator, "yields yields, expected a function that returns one verdict"),
        (closed_over_a_lock, "verifier uses lock, an object of lock, which worker processes"),
        (closed_over_nothing_yet, "verifier uses later, which has no value yet"),
        (wrong_arity, "three takes (response, reference, more), expected (response, reference)"),
    ],
)
def test_a_function_that_cannot_grade_is_refused(made: Callable[[], Any], sentence: str, here: Path) -> None:
    assert sentence in refused(asyncrl.train, **call_with(verifier=made()))
    assert files(here) == []


@pytest.fixture
def run(here: Path) -> Run:
    """A run that has trained nothing yet."""
    folder = begin_run(here)
    (folder / "metrics.jsonl").write_text("")
    return Run(folder)


@pytest.mark.parametrize("what", [asyncrl.Run, asyncrl.resume])
def test_what_is_no_run_is_refused(what: Callable[..., Any], here: Path) -> None:
    (here / "file").write_text("")
    for folder in (here, "nowhere", "file", "file/x", "~no_such_user_here"):
        assert refused(what, folder)
    for kind, value in values().items():
        assert "Errno" not in refused(what, value), kind


def test_arguments_that_no_parameter_takes_are_refused_with_the_nearest(run: Run) -> None:
    assert "Did you mean steps?" in refused(asyncrl.resume, run.folder, stpes=3)
    assert "asyncrl.resume: missing a required argument: 'folder'" in refused(asyncrl.resume)
    assert "Did you mean correct?" in refused(run.trajectories, corect=True)
    assert "too many positional arguments" in refused(asyncrl.Run, run.folder, 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"step": 40}, "step is 40, expected none: no step is trained yet."),
        ({"step": 0}, "step is 0, expected a step, counted from 1"),
        ({"step": (3, 1)}, "expected the first step and then the last"),
        ({"step": (1, 2, 3)}, "expected a step, counted from 1, or a pair"),
        ({"step": "1"}, "step is '1', expected a step"),
        ({"correct": "yes"}, "correct is 'yes', expected True or False"),
        ({"contains": 3}, "contains is 3, expected text"),
        ({"limit": 0}, "limit is 0, expected a whole number above 0"),
    ],
)
def test_trajectories_that_are_not_there_are_refused(run: Run, words: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(run.trajectories, **words)
    assert run.trajectories() == []


@pytest.mark.parametrize(
    ("benchmarks", "words", "sentence"),
    [
        ((3,), {}, "benchmark is 3, expected a path"),
        ((), {"at": 1.5}, "at is 1.5, expected base, best, last or a step"),
        ((), {"at": []}, "at is [], expected base"),
        ((), {"k": "3"}, "k is '3', expected a whole number above 0"),
        ((), {"k": True}, "k is True"),
        ((), {"num_tasks": [3]}, "num_tasks is [3], expected the value of an option"),
        ((), {"json": True}, "json is given, but the result is what evaluate returns"),
    ],
)
def test_an_evaluation_of_wrong_kinds_is_refused(
    run: Run, benchmarks: tuple[Any, ...], words: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(run.evaluate, *benchmarks, **words)


def test_a_misspelt_column_is_refused_with_the_nearest() -> None:
    assert "Did you mean reward_mean?" in refused(Table([{"reward_mean": 1.0}]).column, "reward_maen")
    assert Table().column("reward_maen") == [] and Table([{"a": 1}, {"b": 2}]).column("b") == [None, 2]


def test_a_run_is_the_same_after_a_change_of_folder(run: Run, tmp_path: Path) -> None:
    relative = Run(os.path.relpath(run.folder))
    os.chdir("/")
    assert relative.folder == run.folder and relative.state == "not started"


class Ended(Program):
    """A program that ended, started by a process that is not this one."""

    def __init__(self, owner: int) -> None:
        self._owner = owner

    def stop(self) -> None:
        raise AssertionError("a fork must not stop the run of its parent")


def test_a_fork_neither_waits_for_nor_stops_the_program_of_its_parent(run: Run) -> None:
    forked = Run(run.folder, program=Ended(os.getpid() + 1))
    forked.stop()
    assert not forked.is_running and forked.wait(quiet=True) is forked


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train_here(**changes: Any) -> Run:
    # Nothing listens there, which is looked at behind all else.
    nowhere = {"servers": ["http://127.0.0.1:9"]}
    words = call_with(rollout={"max_new_tokens": 16}, serving=nowhere, **changes)
    return asyncrl.train(**{key: value for key, value in words.items() if key != "algorithm"})


@pytest.mark.exhaustive
def test_a_real_process_says_the_row_and_not_a_file_that_is_gone(project: Path) -> None:
    before = files(project)
    said = refused(train_here, data=[{"promt": "1+1=", "answer": "2"}], heldout=None)
    assert said == 'data, row 1: no "prompt"; the row has promt, answer. ' + (
        'Did you mean "prompt" where it says "promt"?'
    )
    assert files(project) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"verifier": says_text}, 'the verifier "says_text" gives no verdict'),
        ({"verifier": raises}, "has no attribute 'nowhere'"),
        ({"verifier": "mth"}, "Did you mean 'math'?"),
        (
            {"data": "opnai/gsm8k", "heldout": None},
            'data.train is "opnai/gsm8k", but this machine has no such path',
        ),
        ({"data": "trian.jsonl", "heldout": None}, "/train.jsonl?"),
        ({"model": "modle"}, "/model?"),
        ({"data": [{"prompt": "1+1="}], "heldout": None}, 'data, row 1: no "answer"'),
        ({}, "serving.servers names http://127.0.0.1:9, which does not answer"),
    ],
)
def test_a_real_process_refuses_what_only_it_can_know(
    project: Path, changes: dict[str, Any], sentence: str
) -> None:
    before = files(project)
    assert sentence in refused(train_here, **changes)
    assert files(project) == before


def test_a_verifier_is_another_one_once_a_global_that_it_reads_has_changed(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "LIMIT = 1\ndef limited(response, reference):\n    return len(response) > LIMIT\n"
    monkeypatch.setitem(
        linecache.cache, "<cell>", (len(code), None, code.splitlines(keepends=True), "<cell>")
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), names)
    files = CallFiles(run.folder / "call")
    raw = yaml.safe_load(RECIPE.replace(": model", ": ../../model"))
    raw["verifying"] = {"default": verifier_name(names["limited"], files)}
    files.write()
    (run.folder / "recipe.yaml").write_text(yaml.safe_dump(raw))
    before = files_of(run.folder)
    names["LIMIT"] = 2
    assert "the verifier is another one now" in refused(asyncrl.resume, run.folder, verifier=names["limited"])
    (file,) = (run.folder / "call").iterdir()
    file.write_text(file.read_text().replace("LIMIT = 1", "LIMIT = 2"))
    assert "is not as `asyncrl.train` wrote it" in refused(asyncrl.resume, run.folder)
    assert files_of(run.folder) == before


@pytest.mark.exhaustive
def test_a_real_process_refuses_a_folder_that_is_in_use_and_leaves_it_as_it_was(
    project: Path, run: Run
) -> None:
    recipe = load_recipe(run.folder / "recipe.yaml", ["rollout.groups_per_batch=2", "data.train=train.jsonl"])
    with RunFolder(run.folder) as folder:
        folder.open(recipe.model_copy(update={"seed": 7}))
        before = files_of(run.folder)
        assert "is in use by process" in refused(asyncrl.resume, run.folder, quiet=True)
        assert files_of(run.folder) == before and not (run.folder / "call").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("benchmark", "words", "sentence"),
    [
        ("gsm9k", {"at": "base"}, "Did you mean gsm8k?"),
        ("gsm8k", {"at": "bset"}, "Did you mean best?"),
        ("gsm8k", {"at": 40}, "--at has 40, but"),
        ("gsm8k", {"num_tsks": 3}, "Did you mean --num-tasks?"),
    ],
)
def test_a_real_process_refuses_an_evaluation_of_what_is_not_there(
    project: Path, run: Run, benchmark: str, words: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(run.evaluate, benchmark, **words)


@pytest.mark.exhaustive
def test_a_call_from_a_thread_and_inside_of_an_event_loop_is_refused_as_any_other(project: Path) -> None:
    said: list[str] = []

    async def inside() -> None:
        said.append(refused(train_here))

    asyncio.run(inside())
    thread = threading.Thread(target=lambda: said.append(refused(train_here)))
    thread.start()
    thread.join()
    assert len(said) == 2 and all("which does not answer" in each for each in said)
