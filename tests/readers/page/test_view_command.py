"""`asyncrl view`: what it prints, how it ends."""

import argparse
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from asyncrl.commands import main as cli
from asyncrl.commands import view

PROGRAM = """
import argparse, sys
from asyncrl.commands import view
parser = argparse.ArgumentParser()
view.add_arguments(parser)
sys.exit(view.run(parser.parse_args()))
"""


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    view.add_arguments(parser)
    return parser.parse_args(words)


def test_a_static_page_is_written(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.html"
    assert view.run(arguments(str(run_folder), "--export", str(file))) == 0
    assert file.read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out.startswith(f"{file}: ")


def test_bad_input_is_one_sentence_and_exit_code_two(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in (
        ([str(tmp_path / "nothing")], "it is not a run folder"),
        ([str(run_folder), "--export", str(tmp_path / "no" / "x.html")], "cannot be written"),
        ([str(run_folder), "--port", "99999"], "--port is 99999, expected 0 to 65535"),
    ):
        assert cli.main(["view", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_it_prints_its_address_and_ends_with_ctrl_c(run_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run_folder)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url, timeout=30) as reply:
            assert b"<!doctype html>" in reply.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 0
