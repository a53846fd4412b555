"""Tasks of reasoning-gym as rows: the same in every process, made once, told apart by what they depend on."""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.gym import NEEDS_GYM
from fakes.template import Template

import asyncrl.data.gym
from asyncrl.data.digests import digest_of
from asyncrl.data.gym_process import Request, make_row
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, Unanswered, rows_of
from asyncrl.errors import InputError
from asyncrl.recipe import Data, Source, Verifying


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "asyncrl" / "gym"


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """It has imported reasoning-gym, with the hash seed that asyncrl gives to each process."""
    modules = ("reasoning_gym.factory", "asyncrl.data.gym_process")
    with Template(*modules, environment={"PYTHONHASHSEED": "0"}) as template:
        yield template


class Forked:
    """What asyncrl uses of subprocess.Popen, for a process that the template forks."""

    def __init__(self, template: Template, command: list[str], *, env: dict[str, str], **_: Any) -> None:
        assert command[:3] == [sys.executable, "-P", "-m"] and env["PYTHONHASHSEED"] == "0"
        self.stderr = tempfile.TemporaryFile()
        self._process = template.start(command[3], command[4:], environment=env, output=self.stderr)
        self.kill, self.wait = self._process.kill, self._process.wait

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def communicate(self) -> tuple[None, str]:
        self.wait()
        self.stderr.seek(0)
        return None, self.stderr.read().decode()


@pytest.fixture
def forked(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are made in processes that are forked: for tests whose subject is not how one starts."""
    popen = functools.partial(Forked, template)
    names = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(asyncrl.data.gym, "subprocess", names)


def read(**keys: Any) -> list[Row | Unanswered]:
    (source,) = Data(train=Source(**keys)).train_sources()
    return list(rows_of([source], "data.train", Verifying(), RowUse(), split="train"))


@NEEDS_GYM
@pytest.mark.usefixtures("forked")
def test_rows_hold_what_the_verifier_needs_and_survive_json():
    rows = read(gym="gcd", size=3, seed=5, config={"max_value": 50})
    assert [row.where for row in rows] == [f"gym gcd, task {n} (seed {4 + n})" for n in (1, 2, 3)]
    first = rows[0]
    assert isinstance(first, Row)
    assert (first.row_id, first.verifier.name, dict(first.verifier.options)) == ("gym-gcd:1", "gym", {})
    assert first.answer["config"] == {"max_value": 50}
    assert json.loads(json.dumps(first.answer)) == first.answer
    assert str(first.prompt) == first.answer["entry"]["question"]


@NEEDS_GYM
@pytest.mark.usefixtures("forked")
def test_the_options_of_a_source_are_those_of_its_verifier():
    for row in read(gym="gcd", size=2, options={"correct_at": 0.5}):
        assert isinstance(row, Row)
        assert (row.verifier.name, row.verifier.options) == ("gym", {"correct_at": 0.5})


@NEEDS_GYM
def test_tasks_are_made_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rows = read(gym="gcd", size=2)
    assert [file.suffix for file in cache.iterdir()] == [".jsonl"]
    assert "Making 2 tasks of gym gcd, to be kept in" in capsys.readouterr().err
    monkeypatch.setattr(subprocess, "Popen", None)
    assert read(gym="gcd", size=2) == rows
    assert capsys.readouterr().err == ""


@NEEDS_GYM
@pytest.mark.usefixtures("forked")
def test_several_processes_make_the_tasks_that_one_makes(monkeypatch: pytest.MonkeyPatch, cache: Path):
    one = read(gym="word_ladder", size=6)
    for file in cache.iterdir():
        file.unlink()
    monkeypatch.setattr(asyncrl.data.gym, "_TASKS_PER_PROCESS", 2)
    monkeypatch.setattr("asyncrl.data.gym.available_cores", lambda: 3)
    assert read(gym="word_ladder", size=6) == one


@NEEDS_GYM
@pytest.mark.parametrize(
    "name",
    [
        "ransom_note",
        pytest.param("isomorphic_strings", marks=pytest.mark.exhaustive),
        pytest.param("polynomial_multiplication", marks=pytest.mark.exhaustive),
    ],
)
def test_the_seed_of_hashes_does_not_decide(name: str, monkeypatch: pytest.MonkeyPatch, cache: Path):
    """These datasets walk over sets: with another PYTHONHASHSEED their tasks would differ."""
    made = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        made.append(read(gym=name, size=4))
        for file in cache.iterdir():
            file.unlink()
    assert made[0] == made[1]


class Failing:
    """A dataset that has a task for even seeds alone, and draws from the generator that all share."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        import random

        if index % 2:
            raise ValueError("no expression found")
        return {"question": f"{random.random()}", "answer": None, "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return 0.0


def test_a_task_depends_on_its_seed_alone():
    pytest.importorskip("numpy")
    request = Request("gcd", {}, seed=8, size=9, start=0, stop=9)
    moved = Request("gcd", {}, seed=6, size=9, start=0, stop=9)
    assert make_row(request, Failing(), 2)["prompt"] == make_row(moved, Failing(), 4)["prompt"]
    assert make_row(request, Failing(), 2)["prompt"] != make_row(request, Failing(), 4)["prompt"]
    assert make_row(request, Failing(), 1) == {"unmade": "ValueError: no expression found"}


@NEEDS_GYM
@pytest.mark.usefixtures("forked")
def test_a_task_that_cannot_be_made_is_a_row_without_an_answer():
    config = {"min_target": 2, "max_target": 2, "min_numbers": 6}
    found = next(row for row in read(gym="countdown", size=8, config=config) if isinstance(row, Unanswered))
    assert found.complaint.startswith(found.where + ": reasoning-gym makes no task of it: ")


@NEEDS_GYM
@pytest.mark.usefixtures("forked")
def test_an_integral_that_is_left_undone_is_no_answer_of_a_task():
    rows = read(gym="intermediate_integration", size=6, seed=3)
    complaints = [row.complaint for row in rows if isinstance(row, Unanswered)]
    assert complaints
    assert all("its own answer is not a plain formula: " in complaint for complaint in complaints)


@NEEDS_GYM
@pytest.mark.usefixtures("forked")
def test_mistakes_leave_nothing_behind(cache: Path):
    with pytest.raises(InputError, match=r'^data\.train has the gym "gdc": .* Did you mean \'gcd\'\?$'):
        read(gym="gdc", size=2)
    with pytest.raises(InputError, match=r"config of 'gcd' has no key 'max_valu'\. Did you mean 'max_value'"):
        read(gym="gcd", size=2, config={"max_valu": 2})
    assert list(cache.iterdir()) == []


def test_what_decides_about_the_tasks_decides_about_the_digest(monkeypatch: pytest.MonkeyPatch):
    versions = iter(["1"] * 5 + ["2"])
    monkeypatch.setattr(asyncrl.data.gym, "installed_version", lambda: next(versions))
    keys = {"gym": "gcd", "size": 5, "seed": 1, "config": {}}
    changes: list[dict[str, Any]] = [{}, {"gym": "lcm"}, {"size": 6}, {"seed": 2}, {"config": {"a": 1}}, {}]
    digests = [digest_of([Source(**{**keys, **change})], "data.train") for change in changes]
    assert len(set(digests)) == len(changes)


def test_a_file_of_tasks_is_found_by_later_versions_of_asyncrl(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asyncrl.data.gym, "installed_version", lambda: "0.1.25")
    source = Source(gym="countdown", size=500, seed=7, config={"min_numbers": 3})
    digest = "19cf3ff24b1887baa7fe92eb6e7b49d372e47b2ece2c45d1989d70a04ace0668"
    assert digest_of([source], "data.train") == digest


def test_without_the_package_a_gym_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    def missing() -> str:
        raise ValueError("reasoning-gym is not installed here.")

    monkeypatch.setattr(asyncrl.data.gym, "installed_version", missing)
    with pytest.raises(InputError, match=r'^data\.train has the gym "gcd", .* not installed'):
        read(gym="gcd", size=2)
