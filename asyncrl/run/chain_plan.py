"""The stages of a chain as they will run: name, recipe and place of each, checked before any begins."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.chain import Chain, SelectStage, Stage, TrainStage
from asyncrl.recipe.file import load_recipe, model_recipe, shown
from asyncrl.recipe.shipped import is_named
from asyncrl.recipe.sources import Source
from asyncrl.run.earlier import BEST, unexported_steps, with_earlier_run
from asyncrl.system.places import RECIPE

SELECTION = "select"
MODEL_KEYS = ("model.path", "critic.path")


@dataclass(frozen=True, slots=True)
class PlannedStage:
    number: int
    """From 1."""
    stage: Stage
    name: str
    kind: str
    """select, sft, dpo or rl."""
    place: Path
    """The run folder; of a selection its file."""
    recipe: Recipe | None
    """None of a selection among a run's own responses."""

    def settings(self) -> dict[str, Any]:
        return self.stage.model_dump()


def plan_stages(chain: Chain) -> list[PlannedStage]:
    """Raises InputError for a stage that cannot begin, whatever the earlier ones do."""
    planned: list[PlannedStage] = []
    for number, stage in enumerate(chain.stages, start=1):
        made = [each.place for each in planned]
        found = _planned(number, _with_made_model(stage, made), made)
        for each in planned:
            if each.place == found.place:
                key = "out" if found.kind == SELECTION else "run_folder"
                raise InputError(
                    f"{_title(found)}: {key} is {shown(found.place)}, which is that of {_title(each)}, too. "
                    f"Name another one{'' if found.kind == SELECTION else ', such as by name'}."
                )
        _check_inputs(found, planned)
        planned.append(found)
    return planned


def _title(stage: PlannedStage) -> str:
    return f"stage {stage.number} ({stage.name})"


def _planned(number: int, stage: Stage, made: Collection[Path]) -> PlannedStage:
    if isinstance(stage, TrainStage):
        recipe = load_recipe(Path(stage.recipe), stage.overrides)
        return PlannedStage(number, stage, recipe.name, recipe.stage, recipe.folder(), recipe)
    out = Path(stage.out)
    return PlannedStage(number, stage, out.stem, SELECTION, out, _asked_recipe(number, stage, made))


def _asked_recipe(number: int, stage: SelectStage, made: Collection[Path]) -> Recipe | None:
    asked = Path(stage.select)
    if asked in made or (asked / RECIPE).is_file():
        return None
    if stage.n is None:
        raise InputError(
            f"stage {number}: select is {stage.select}, which is no run, and no earlier stage makes it. Name "
            f"a run, or say by n how many responses are generated."
        )
    if asked.is_file() or is_named(asked):
        return load_recipe(asked, stage.overrides)
    if not any(override.startswith("data.train") for override in stage.overrides):
        raise InputError(
            f"stage {number}: select is {stage.select}, which is taken for a model, for it is no run and no "
            f"recipe. Name the rows that it is asked: overrides: [data.train=FILE]."
        )
    return model_recipe(stage.select, stage.overrides)


def _with_made_model(stage: Stage, made: Sequence[Path]) -> Stage:
    """`stage` where a path such as runs/sft, which nothing has before the chain begins and which may be a hub
    id, names the run of an earlier stage."""
    changed: dict[str, Any] = {"overrides": [_made_model(override, made) for override in stage.overrides]}
    if isinstance(stage, SelectStage):
        changed["select"] = _made_path(stage.select, made)
    return stage.model_copy(update=changed)


def _made_model(override: str, made: Sequence[Path]) -> str:
    key, _, value = override.partition("=")
    if key not in MODEL_KEYS:
        return override
    return f"{key}={json.dumps(_made_path(str(json.loads(value)), made))}"


def _made_path(path: str, made: Sequence[Path]) -> str:
    before, which = split_step(path)
    parts = Path(before).parts
    found = next((run for run in made if run.parts[-len(parts) :] == parts), None)
    return path if found is None or os.path.isabs(path) else f"{found}{which}"


def split_step(path: str) -> tuple[str, str]:
    """runs/sft@best as runs/sft and @best; of a path without a step "" is the second."""
    before, at, which = path.rpartition("@")
    return (before, f"@{which}") if at and (which == BEST or which.isdecimal()) else (path, "")


def _check_inputs(stage: PlannedStage, earlier: Sequence[PlannedStage]) -> None:
    """Raises InputError where a model or data is not there, and no earlier stage makes it."""
    if stage.recipe is None:
        return
    made = [each.place for each in earlier]
    model, _ = split_step(stage.recipe.model.path)
    if Path(model) not in made and not unexported_steps(stage.recipe):
        # Refuses a run that has not ended.
        with_earlier_run(stage.recipe)
    prepared = [
        Path(recipe.prepare.folder)
        for recipe in [stage.recipe, *(each.recipe for each in earlier)]
        if recipe is not None and recipe.prepare is not None
    ]
    for key, path in _inputs(stage.recipe):
        is_made = Path(path) in made or any(Path(path).is_relative_to(folder) for folder in prepared)
        if os.path.isabs(path) and not os.path.exists(path) and not is_made:
            raise InputError(
                f"{_title(stage)}: {key} is {shown(Path(path))}, which is not there, and no earlier stage "
                f"makes it."
            )


def _inputs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(key, path or hub id) of what a recipe begins with."""
    yield "model.path", _without_run(recipe.model.path)
    named: dict[str, list[Source]] = {
        "data.train": recipe.data.train_sources(),
        "data.heldout": recipe.data.heldout_sources(),
    }
    for key, sources in named.items():
        yield from ((key, source.path) for source in sources if source.path is not None)


def _without_run(path: str) -> str:
    before, which = split_step(path)
    return path if not which or os.path.exists(path) else before
