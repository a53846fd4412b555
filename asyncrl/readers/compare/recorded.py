"""A run as a comparison reads it, from its folder: its recipe, and its answers to tasks that others were
asked.

A task is the same for two runs where both read the same file (its digest, or the pinned commit of a
benchmark, is equal) and its id is equal; else where its prompt is equal, letter by letter.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from asyncrl.errors import InputError
from asyncrl.journal.connection import GENERATED, TRAINED, OtherSchema, read_counters
from asyncrl.journal.evaluations import GREEDY, Answer, read_answers, read_prompts
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.journal.starts import recorded_data, recorded_machines
from asyncrl.recipe.former_keys import as_now
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.run.metrics_file import Metrics, Row, read_metrics
from asyncrl.system.files import read_text
from asyncrl.system.paths import nearest_run
from asyncrl.system.places import JOURNAL, METRICS, RECIPE
from asyncrl.system.words import kind_of

Keys = dict[str, Any]
"""Key with dots -> value; a list is one value."""

OWN = ("seed", "name", "run_folder")
"""Keys in which the runs of a group may differ."""
PLACES = ("name", "run_folder", "path", "folder")
"""Last parts of keys that say where something is or how it is called."""


def flat(recipe: Mapping[str, Any], prefix: str = "") -> Keys:
    """The keys of a recipe as `asyncrl keys` names them."""
    found: Keys = {}
    for name, value in recipe.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        elif name == "name" and prefix:
            # A term, whose short form is its name.
            found[prefix.removesuffix(".")] = value
        else:
            found[f"{prefix}{name}"] = value
    return found


def differing(recipes: Sequence[Keys]) -> list[str]:
    """Keys without one value in all recipes, in the order of the recipes; paths and names last."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    # A key that a recipe lacks differs from any value.
    texts = [
        {key: json.dumps(value, sort_keys=True, default=str) for key, value in r.items()} for r in recipes
    ]
    found = [key for key in keys if len({text.get(key) for text in texts}) > 1]
    return sorted(found, key=lambda key: key.rpartition(".")[2] in PLACES)


def without_seed(recipe: Keys) -> str:
    """Equal for recipes that differ in nothing but seed, name and run_folder."""
    kept = {key: value for key, value in recipe.items() if key not in OWN}
    return json.dumps(kept, sort_keys=True, default=str)


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
    return flat(as_now(read))


HELDOUT = "held-out"
Scores = Mapping[str, float | None]
"""Task -> score in [0, 1]; None without a verdict. As in an accuracy, what is not wholly right is wrong."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Common:
    """Scores of runs on the tasks that all of them were asked and have verdicts on."""

    tasks: list[str]
    scores: Floats
    """[runs, tasks]"""
    num_asked: list[int]
    """Tasks of each run."""
    num_without_verdict: int
    """Tasks that all were asked, without a verdict of at least one."""


def common(scores: Sequence[Scores]) -> Common:
    """Scores on the common tasks, in the order of the first run's tasks."""
    first, *others = scores
    shared = [task for task in first if all(task in other for other in others)]
    graded = [task for task in shared if all(each[task] is not None for each in scores)]
    matrix = np.array([[each[task] for task in graded] for each in scores], dtype=np.float64)
    return Common(graded, matrix, [len(each) for each in scores], len(shared) - len(graded))


class AnswersOf:
    """The evaluations `name` of runs, under names of tasks that mean the same for all of them.

    Raises InputError for a journal that cannot be read.
    """

    def __init__(self, runs: Sequence[RecordedRun], name: str) -> None:
        self._name = name
        self._prompts = None if _have_same_rows(runs, name) else {r.label: _prompts(r, name) for r in runs}

    def at(self, run: RecordedRun, version: int) -> dict[str, list[Answer]]:
        """Task -> the answers of `version`, most likely one and samples; empty where none are recorded."""
        found: dict[str, list[Answer]] = {}
        names = {} if self._prompts is None else self._prompts[run.label]
        for answer in () if run.journal is None else read_answers(run.journal, version, self._name):
            found.setdefault(names.get(answer.task_id, answer.task_id), []).append(answer)
        return found


def greedy_scores(answers: Mapping[str, Sequence[Answer]]) -> Scores:
    """Scores of the most likely answers."""
    return {
        task: _right(answer.correctness)
        for task, given in answers.items()
        for answer in given
        if answer.sample == GREEDY
    }


def sampled_scores(answers: Mapping[str, Sequence[Answer]]) -> Scores:
    """The mean over the samples with a verdict: avg@k of each task."""
    found: dict[str, float | None] = {}
    for task, given in answers.items():
        samples = [answer for answer in given if answer.sample != GREEDY]
        graded = [right for answer in samples if (right := _right(answer.correctness)) is not None]
        if samples:
            found[task] = sum(graded) / len(graded) if graded else None
    return found


def _right(correctness: float | None) -> float | None:
    return None if correctness is None else float(correctness == 1.0)


def _have_same_rows(runs: Sequence[RecordedRun], name: str) -> bool:
    if name == HELDOUT:
        sources = {
            None if run.journal is None else recorded_data(run.journal).get("data.heldout") for run in runs
        }
    else:
        # A path names no content; a commit of a hub does.
        rows = [row for run in runs for row in run.metrics.benchmarks if row["benchmark"] == name]
        parts = {str(row.get("source")) for row in rows}
        sources = {part if all("@" in place for place in part.split(" + ")) else None for part in parts}
    return len(sources) == 1 and None not in sources


def _prompts(run: RecordedRun, name: str) -> dict[str, str]:
    return {} if run.journal is None else read_prompts(run.journal, name)
