"""The command line knows for which process it was started, and tells nothing that it starts."""

import os
from pathlib import Path

import pytest

from asyncrl.commands import main as cli
from asyncrl.launch.python.caller import VARIABLE, Caller, take_caller


def test_a_caller_is_taken_out_of_the_environment(tmp_path: Path) -> None:
    caller = Caller(7, tmp_path / "a file")
    environment = {"HOME": "/", **caller.variable()}
    assert take_caller(environment) == caller and environment == {"HOME": "/"}
    assert take_caller(environment) is None


def test_a_refusal_is_in_the_callers_file_without_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "refusal"
    for name, value in Caller(0, file).variable().items():
        monkeypatch.setenv(name, value)
    assert cli.main(["status", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{file.read_text()}\nRead: ")
    assert VARIABLE not in os.environ
