"""Each file of a run folder has one name, in one place."""

import ast
from pathlib import Path

import asyncrl
from asyncrl.system import places

ROOT = Path(asyncrl.__path__[0])
NAMES = (
    *(places.RECIPE, places.JOURNAL, places.METRICS, places.STATUS, places.CURVES),
    *(places.CONTROLLER_URL, places.TOKEN, places.CHECKPOINTS, places.PUBLICATIONS),
)
"""Those that are nothing else's: `evaluation` and `trackers` are sections of a recipe too."""


def test_names_in_a_run_folder_are_spelled_once() -> None:
    spelled = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in ROOT.rglob("*.py")
        if file != Path(places.__file__)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert spelled == []
