"""The contract kit passes an environment that keeps its promises, and says which one another breaks."""

from pathlib import Path

import pytest
from fakes.gym import NEEDS_GYM, gym_gold

from asyncrl.turns.contract import check_environment
from verifiers.contract import Check

OWN = """
import os, random, time
from asyncrl.turns import End, Observation

class Honest:
    def start(self, row):
        self.turns = 0
        return f"Question {row['n']}"
    def step(self, text):
        self.turns += 1
        return End(0.0) if self.turns == 3 else Observation(f"{self.turns}: {text[:100]}")

class MoodyStart(Honest):
    def start(self, row): return str(random.random())

class Moody(Honest):
    def step(self, text): return Observation(str(random.random()))

class MoodyAndSaysSo(Moody):
    recovery = "neither"

class Raises(Honest):
    def step(self, text): return Observation(text[0])

class Encodes(Honest):
    def step(self, text): return Observation(str(len(text.encode())))

class Hangs(Honest):
    def step(self, text):
        while text.count("}") > 5000: pass
        return Observation("short")

class Exits(Honest):
    def step(self, text):
        if "\\x00" in text: os._exit(3)
        return Observation("fine")

class Returns(Honest):
    def step(self, text): return "text"

class NeedsColumn(Honest):
    def start(self, row): return row["m"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


async def failed(folder: Path, name: str) -> list[Check]:
    rows = [{"n": 1}, {"n": 2}]
    checks = await check_environment(f"./own.py:{name}", {}, rows, folder=folder, timeout_seconds=1.0)
    return [check for check in checks if not check.passed]


@pytest.mark.parametrize("name", ["Honest", "MoodyAndSaysSo"])
async def test_an_environment_that_keeps_the_contract_passes(folder: Path, name: str) -> None:
    assert await failed(folder, name) == []


@pytest.mark.parametrize(
    ("name", "promise", "detail"),
    [
        ("Absent", "loads by its name", "no class 'Absent'"),
        ("MoodyStart", "start opens the same conversation", "row 1: "),
        ("NeedsColumn", "start opens the same conversation", "row 1: start raised KeyError: 'm'"),
        ("Raises", "no text makes step raise", "'' (0 characters): step raised IndexError"),
        ("Encodes", "no text makes step raise", "UnicodeEncodeError"),
        ("Hangs", "no text makes step raise", "(10000 characters): the environment took more than 1 s"),
        ("Exits", "no text makes step raise", "ended by itself, with exit code 3"),
        ("Returns", "no text makes step raise", "step returned str, expected"),
        ("Moody", "the same turns get the same answers", "row 1, turn '42': "),
    ],
)
async def test_a_broken_promise_is_named_with_what_broke_it(
    folder: Path, name: str, promise: str, detail: str
) -> None:
    (check,) = await failed(folder, name)
    assert promise in check.promise and detail in check.detail


@NEEDS_GYM
async def test_the_built_in_game_keeps_the_contract() -> None:
    row = {"answer": gym_gold("leg_counting")}
    checks = await check_environment("gym_feedback", {"num_tries": 2}, [row], timeout_seconds=60.0)
    assert [check for check in checks if not check.passed] == []
