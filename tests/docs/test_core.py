"""The core, as docs/architecture.md lists it: how large it is, and that it imports no feature."""

import ast

import pytest
from docs.core_picture import BLOCK, PAGE, ROOT, SEAMS, imported, picture, stages

MOST_FILES = 43
MOST_LINES = 10_554
FEATURES = (
    *(
        "commands",
        "controller.completion",
        "controller.take_parts",
        "evaluation",
        "examples",
        "journal.compaction",
        "launch",
        "model.column_bytes",
    ),
    *("observe", "readers", "replay.repetition", "rollout.filter"),
    *(
        "rollout.agents",
        "rollout.credits",
        "rollout.early_abort",
        "rollout.judged_groups",
        "rollout.teacher",
        "rollout.turn_player",
    ),
    *("tasks.pass_rates", "tasks.recorded", "tasks.selection"),
    "tasks.source_choice",
    *("serving.delta", "trainer.publishing.encodings", "trainer.publishing.from_memory"),
    *("trainer.network.adapted_layers", "trainer.network.adapters", "trainer.packing.terms"),
    *("serving.sglang.columns", "trainer.packing.routes"),
    *("trainer.parts", "turns"),
)
"""Modules and rooms of features, below asyncrl."""


def core() -> list[str]:
    """Files of the list, below asyncrl and without their ending."""
    return [file for files in stages(PAGE.read_text(encoding="utf-8")).values() for file in files]


def feature_of(module: str) -> str | None:
    below = module.removeprefix("asyncrl.")
    return next((name for name in FEATURES if below == name or below.startswith(f"{name}.")), None)


def features_in(source: str) -> set[str]:
    nodes = ast.walk(ast.parse(source))
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name for module in modules if (name := feature_of(module)) is not None}


def read(file: str) -> str:
    return (ROOT / "asyncrl" / f"{file}.py").read_text(encoding="utf-8")


def test_the_core_grows_neither_in_files_nor_in_lines() -> None:
    files = core()
    assert 40 < len(files) == len(set(files)) <= MOST_FILES
    assert sum(len(read(file).splitlines()) for file in files) <= MOST_LINES


def test_no_file_of_the_core_imports_a_feature() -> None:
    found = {file: features for file in core() if (features := features_in(read(file)))}
    assert not found


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ("from asyncrl.trainer.parts.critic import Critic", {"trainer.parts"}),
        ("from asyncrl.turns.pool import EpisodePool", {"turns"}),
        ("from asyncrl.replay.queue import ReplayQueue", set()),
    ],
)
def test_an_import_of_a_feature_is_found(line: str, feature: set[str]) -> None:
    assert features_in(line) == feature


def test_the_picture_is_that_of_the_imports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (drawn,) = BLOCK.findall(page)
    assert drawn == picture(page), "run .venv/bin/python -P tests/docs/core_picture.py"


@pytest.mark.parametrize("seam", SEAMS)
def test_what_is_drawn_at_a_seam_attaches_there(seam: str) -> None:
    place, core_file = SEAMS[seam]
    folder = ROOT / "asyncrl" / place
    files = [f"{place}/{path.stem}" for path in folder.glob("*.py")] if folder.is_dir() else [place]
    assert any(core_file in imported(file) for file in files) or place in imported(core_file)
