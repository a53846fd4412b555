"""A chain of stages: name, recipe and place of each, checked before any begins; and the chain's folder, which
holds the stages as they were planned and what each selection saw and cost.

What a trained stage did is in its run folder. One launcher at a time; all files are replaced whole.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.chain import Chain, SelectStage, Stage, TrainStage
from asyncrl.recipe.file import load_recipe, model_recipe, shown
from asyncrl.recipe.shipped import is_named
from asyncrl.recipe.sources import Source
from asyncrl.run.earlier import BEST, unexported_steps, with_earlier_run
from asyncrl.system.files import read_text, write_whole
from asyncrl.system.places import LOCK, RECIPE
from asyncrl.system.words import as_written

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
    path = recipe.model.path
    yield "model.path", path if os.path.exists(path) else split_step(path)[0]
    named: dict[str, list[Source]] = {
        "data.train": recipe.data.train_sources(),
        "data.heldout": recipe.data.heldout_sources(),
    }
    for key, sources in named.items():
        yield from ((key, source.path) for source in sources if source.path is not None)


CHAIN = "chain.json"
SILENT_SECONDS = 30.0
"""A selection that was written down longer ago is no longer running: it is about every two seconds."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Kind = TypeVar("Kind", bound=_Record)


class StageRecord(_Record):
    name: str
    kind: str
    """select, sft, dpo or rl."""
    place: str
    """The run folder; of a selection its file."""


class ChainRecord(_Record):
    name: str
    file: str
    """File that lists its stages."""
    stages: list[StageRecord]


class SelectionRecord(_Record):
    """Settings of a selection, and how far it is."""

    settings: dict[str, Any]
    """The stage of the chain, every key."""
    state: Literal["running", "stopped", "finished"]
    written_seconds: float
    """Unix time."""
    model: str | None
    """Folder of the model that generates; None where a run's own responses are selected."""
    wall_seconds: float = 0.0
    """Over all starts, as are the CPU seconds."""
    cpu_seconds: float = 0.0
    account: dict[str, Any] | None = None
    """`Account.as_json` of a whole selection."""
    num_lines: int | None = None
    digest: str | None = None
    """SHA-256 of the file."""

    def is_running(self) -> bool:
        return self.state == "running" and time.time() - self.written_seconds < SILENT_SECONDS


class ChainFolder:
    """Opened for writing by one launcher; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def record(self) -> ChainRecord | None:
        """None before the chain's first start. Raises InputError."""
        return _read(self.path / CHAIN, ChainRecord)

    def selection(self, number: int) -> SelectionRecord | None:
        """The record of the selection that is stage `number`; None before it begins. Raises InputError."""
        return _read(self._selection(number), SelectionRecord)

    def write_selection(self, number: int, record: SelectionRecord) -> None:
        write_whole(self._selection(number), record.model_dump_json(indent=1) + "\n")

    def open(self, name: str, file: Path, stages: Sequence[PlannedStage]) -> None:
        """Creates the folder, takes its lock and writes the stages down. Raises InputError where another
        launcher holds it, and where a stage that has begun is another one now."""
        if (self.path / RECIPE).is_file():
            raise InputError(f"folder is {shown(self.path)}, which is that of a run. Name another one.")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / LOCK).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError(
                f"folder {shown(self.path)} is in use by another asyncrl chain. Wait for it, stop it, or "
                f"name another folder."
            ) from None
        self._check(stages)
        written = [
            StageRecord(name=stage.name, kind=stage.kind, place=str(stage.place.absolute()))
            for stage in stages
        ]
        record = ChainRecord(name=name, file=os.path.abspath(file), stages=written)
        write_whole(self.path / CHAIN, record.model_dump_json(indent=1) + "\n")

    def _check(self, stages: Sequence[PlannedStage]) -> None:
        """Raises InputError where a stage that has begun is not what `stages` says."""
        there = self.record()
        begun = (
            []
            if there is None
            else [
                number for number, stage in enumerate(there.stages, start=1) if self.has_begun(number, stage)
            ]
        )
        for number in begun:
            assert there is not None
            was = there.stages[number - 1]
            now = stages[number - 1] if number <= len(stages) else None
            if now is None or (now.kind, str(now.place.absolute())) != (was.kind, was.place):
                found = (
                    "is gone from the chain" if now is None else f"is now {now.kind} into {shown(now.place)}"
                )
                raise InputError(
                    f"Stage {number} of {shown(self.path)} was {was.kind} into {shown(Path(was.place))}, has "
                    f"begun, and {found}. Put it back, or set folder (or name) of the chain to a new one."
                )
            self._check_selection(number, now)

    def _check_selection(self, number: int, now: PlannedStage) -> None:
        known = self.selection(number) if now.kind == SELECTION else None
        for key, value in now.settings().items():
            if known is not None and known.settings.get(key) != value:
                raise InputError(
                    f"Stage {number} began with {key} = {as_written(known.settings.get(key))}, the chain now "
                    f"says {as_written(value)}. Put the old value back; to select again, name another `out`, "
                    f"and another folder (or name) of the chain."
                )

    def has_begun(self, number: int, stage: StageRecord) -> bool:
        if stage.kind == SELECTION:
            return self._selection(number).is_file()
        return (Path(stage.place) / RECIPE).is_file()

    def _selection(self, number: int) -> Path:
        return self.path / f"stage-{number}.json"

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "ChainFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return kind.model_validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(
            f"{path} is damaged: {error.errors()[0]['msg']}. Put it back, or remove the folder."
        ) from None
