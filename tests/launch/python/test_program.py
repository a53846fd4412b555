"""A program that a script has started ends with it."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

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
