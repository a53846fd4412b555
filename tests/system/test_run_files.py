"""Each file of a run folder has one name, in one place."""

import ast
from pathlib import Path

import asyncrl
from asyncrl.system import run_files

ROOT = Path(asyncrl.__path__[0])
NAMES = (
    *(run_files.RECIPE, run_files.JOURNAL, run_files.METRICS, run_files.STATUS, run_files.CURVES),
    *(run_files.CONTROLLER_URL, run_files.TOKEN, run_files.CHECKPOINTS, run_files.PUBLICATIONS),
)
"""Those that are nothing else's: `evaluation` and `trackers` are sections of a recipe too."""


def test_names_in_a_run_folder_are_spelled_once() -> None:
    spelled = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in ROOT.rglob("*.py")
        if file != Path(run_files.__file__)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert spelled == []
