"""A defect of a later stage of a chain is said before the first one begins."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl.errors import InputError
from asyncrl.journal.writer import Journal
from asyncrl.recipe.chain import read_chain
from asyncrl.run.chain import PlannedStage, plan_stages

RL = {
    "name": "rl",
    "model": {"path": "model"},
    "data": {"train": "rows.jsonl"},
    "evaluation": {"every_steps": 0},
}
SFT = {**RL, "name": "sft", "stage": "sft"}
SELECT = {"select": "rl.yaml", "n": 4, "out": "chosen.jsonl"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recipes beside a model, their rows, and a run that has not ended."""
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}))
    for name, recipe in (("rl", RL), ("sft", SFT)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "runs/open").mkdir(parents=True)
    (tmp_path / "runs/open/recipe.yaml").write_text(yaml.safe_dump(RL))
    Journal(tmp_path / "runs/open/journal.sqlite").close()
    return tmp_path


def planned(folder: Path, *stages: Any, **keys: Any) -> list[PlannedStage]:
    (folder / "chain.yaml").write_text(yaml.safe_dump({"stages": [*stages], **keys}))
    return plan_stages(read_chain(folder / "chain.yaml"))


def trained(recipe: str, *overrides: str) -> dict[str, Any]:
    return {"recipe": recipe, "overrides": [*overrides]}


def test_a_chain_names_what_its_own_stages_make(folder: Path) -> None:
    stages = planned(
        folder,
        SELECT,
        trained("sft.yaml", "data.train=chosen.jsonl"),
        # Nothing is there yet that tells this from a hub id.
        trained("rl.yaml", "model.path=runs/sft@best"),
        {"select": "runs/rl", "out": "more.jsonl"},
    )
    assert [stage.kind for stage in stages] == ["select", "sft", "rl", "select"]
    assert [stage.name for stage in stages] == ["chosen", "sft", "rl", "more"]
    last = stages[2].recipe
    assert last is not None and last.model.path == f"{folder}/runs/sft@best"
    assert stages[3].recipe is None


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            ["sft.yaml", trained("rl.yaml", "model.path=runs/open")],
            r"model\.path is .*runs/open, but that run has not ended",
        ),
        (
            ["sft.yaml", trained("rl.yaml", "model.path=./runs/stf")],
            r"stage 2 \(rl\): model\.path is .*runs/stf, which is not there, and no earlier stage makes it",
        ),
        (
            [trained("sft.yaml", "data.train=chosen.jsonl"), SELECT],
            r"stage 1 \(sft\): data\.train is .*chosen\.jsonl, which is not there",
        ),
        (
            ["rl.yaml", trained("rl.yaml", "seed=1")],
            r"stage 2 \(rl\): run_folder is .*runs/rl, .* stage 1 \(rl\)",
        ),
        ([SELECT, SELECT], r"stage 2 \(chosen\): out is .*chosen\.jsonl, which is that of stage 1"),
        ([{"select": "runs/none", "out": "x.jsonl"}], r"stage 1: select is .*runs/none, which is no run"),
        (
            [{"select": "model", "out": "x.jsonl", "n": 2}],
            r"taken for a model.*overrides: \[data\.train=FILE\]",
        ),
        ([{**SELECT, "limt": 2}], r"unknown key stages\.0\.limt"),
        ([{**SELECT, "n": 0}], r"stages\.0\.n is 0: "),
        ([{"select": "rl.yaml"}], r"stages\.0\.out is missing and has no default"),
    ],
)
def test_what_no_stage_makes_is_refused(folder: Path, stages: list[Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        planned(folder, *stages)
