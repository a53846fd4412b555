"""A program that a script has started ends with it, and tells its refusal to the script alone."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import Command

from asyncrl.launch.python.caller import VARIABLE, Caller, take_caller
from asyncrl.launch.python.program import Program, _stop_attached


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
