"""A run as a comparison reads it: from its folder alone, read only, while the run writes it or after.

A journal that another version of asyncrl wrote, or that was not copied, is no error: such a run is compared
by what metrics.jsonl says, and `remarks` tells so. A damaged one is.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from asyncrl.errors import InputError
from asyncrl.journal.connection import OtherSchema
from asyncrl.journal.counters import GENERATED, TRAINED, read_counters
from asyncrl.journal.machines import recorded_machines
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.readers.compare.recipes import Keys, flat
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.run.metrics_file import Metrics, Row, read_metrics
from asyncrl.system.kinds import kind_of
from asyncrl.system.near_paths import nearest_run
from asyncrl.system.run_files import JOURNAL, METRICS, RECIPE
from asyncrl.system.text_file import read_text


@dataclass(frozen=True)
class RecordedRun:
    label: str
    """Short, and no other run of the comparison has it."""
    folder: Path
    recipe: Keys
    metrics: Metrics
    journal: JournalReader | None
    """None where there is none that this version of asyncrl reads."""
    remarks: list[str] = field(default_factory=list)
    """Facts that a reader of the comparison should know of the run."""

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", self.label))

    @property
    def seed(self) -> Any:
        return self.recipe.get("seed", 0)

    def last_evaluation(self) -> Row | None:
        """Evaluation of the newest version with a greedy accuracy; of two of one version, the later one."""
        return max(self.evaluations(), key=lambda row: row["step"], default=None)

    def evaluations(self) -> list[Row]:
        """Evaluations with a greedy accuracy and its interval, by step, the later one of two first."""
        known = [row for row in reversed(self.metrics.evaluations) if row.get("greedy_low") is not None]
        return sorted(known, key=lambda row: row["step"])

    def machines(self) -> list[str]:
        """Machines that its starts ran on; empty where nothing says."""
        return [] if self.journal is None else recorded_machines(self.journal)

    def tokens(self) -> tuple[int | None, int | None]:
        """Generated and trained so far, as the journal counts them."""
        if self.journal is None:
            return None, None
        counted = read_counters(self.journal)
        return counted.get(GENERATED, 0), counted.get(TRAINED, 0)


def open_runs(folders: Sequence[Path], names: Sequence[str] | None = None) -> list[RecordedRun]:
    """`names` are the labels of the runs, where given.

    Raises InputError for a folder that is no run's, one that is named twice, and a damaged file."""
    places: dict[Path, Path] = {}
    for folder in folders:
        place = Path(os.path.realpath(folder))
        if place in places:
            raise InputError(
                f"{folder} is the same run as {places[place]}. Name two different runs to compare them."
            )
        places[place] = folder
    given = labels(list(places)) if names is None else names
    return [_open(folder, label) for folder, label in zip(folders, given, strict=True)]


def labels(folders: Sequence[Path]) -> list[str]:
    """The name of each folder, with as many parents as it takes to tell it from the others."""
    depth = 1
    while True:
        found = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(found)) == len(found) or depth > max(len(folder.parts) for folder in folders):
            return found
        depth += 1


def _open(folder: Path, label: str) -> RecordedRun:
    recipe_file = folder / RECIPE
    if not recipe_file.is_file():
        raise InputError(
            f"{folder} holds no {RECIPE}, so it is not a run folder. Runs are in runs/NAME."
            f"{nearest_run(folder)}"
        )
    remarks = []
    try:
        journal = find_journal(folder / JOURNAL)
    except OtherSchema as error:
        journal = None
        remarks.append(
            f"{label}: its journal has schema {error.schema}, which this version of asyncrl does not read: "
            f"{METRICS} alone is compared."
        )
    else:
        if journal is None:
            remarks.append(f"{label}: without {JOURNAL}, {METRICS} alone is compared.")
    return RecordedRun(label, folder, _recipe(recipe_file), read_metrics(folder / METRICS), journal, remarks)


def _recipe(file: Path) -> Keys:
    """The keys as the file has them: a run of another version may have others than this one knows."""
    try:
        read = read_yaml(read_text(file))
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{file} is not the recipe of a run: {first}.") from error
    if not isinstance(read, dict):
        found = "it is empty" if read is None else f"it holds {kind_of(read)}"
        raise InputError(f"{file} is not the recipe of a run: {found}, expected keys.")
    return flat(read)
