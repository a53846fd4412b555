"""Inputs for reproducing a step of a run: from which version, on which batches, under which recipe. No torch.

Steps count from 1: step n made version n out of version n - 1. Raises InputError where a run does not hold
what is needed.
"""

from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.journal.queue_state import compacted_before
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.starts import recipes_of_steps, recorded_unsampled
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, parse_recipe, with_moved_files
from asyncrl.recipe.former_keys import as_now
from asyncrl.recipe.sections.section import LAYOUT, marked, value_at
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import newest_version
from asyncrl.run.metrics_file import Row, read_metrics
from asyncrl.system.places import CHECKPOINTS, JOURNAL, METRICS, RECIPE


@dataclass(frozen=True)
class Reproduction:
    recipe: Recipe
    """The one that the last step was trained under."""
    recipes: dict[int, Recipe]
    """By the first step of each, ascending: those that all steps were trained under. Between two of them only
    learning rates differ, and keys that change nothing."""
    checkpoints: Path
    begin: PolicyVersion
    """The version to start from: a checkpoint's, or 0 for the base model."""
    journal: JournalReader
    recorded: dict[int, Row]
    """Step -> its row of metrics.jsonl; a step between may lack one, the last has it."""
    unsampled: Unsampled
    """The tokens that the run never samples."""

    def recipe_of(self, step: int) -> Recipe:
        """The recipe that a step was trained under."""
        return self.recipes[max(begin for begin in self.recipes if begin <= step)]


def plan_reproduction(run_folder: Path, step: int) -> Reproduction:
    """Plans from the nearest complete checkpoint before `step`, else from the base model."""
    path = run_folder / JOURNAL
    journal = JournalReader(path)
    _check_step(journal, step)
    rows = {row["step"]: row for row in read_metrics(run_folder / METRICS).steps}
    if step not in rows:
        raise InputError(
            f"{run_folder / METRICS} has no row for step {step}: the run ended before it was "
            f"reported, so there is nothing to compare with."
        )
    checkpoints = run_folder / CHECKPOINTS
    begin = newest_version(checkpoints, at_most=step - 1)
    if begin < (compacted := compacted_before(journal)):
        raise InputError(
            f"{path}: the tokens of steps 1 to {compacted} are compacted, and no checkpoint from version "
            f"{compacted} to {step - 1} is complete. Reproduce a later step, or keep more in the next run "
            f"(replay.keep_steps, trainer.keep_checkpoints)."
        )
    recipes = _recipes(journal, run_folder, begin + 1, step)
    recorded = {n: row for n, row in rows.items() if begin < n <= step}
    unsampled = Unsampled.parse(recorded_unsampled(journal))
    return Reproduction([*recipes.values()][-1], recipes, checkpoints, begin, journal, recorded, unsampled)


def _check_step(journal: JournalReader, step: int) -> None:
    steps = journal.step_range()
    if steps is None:
        raise InputError(f"{journal.path} holds no step yet: nothing was trained.")
    first, last = steps
    if not first <= step <= last:
        raise InputError(f"step {step} is not in {journal.path}, which holds steps {first} to {last}.")


def _recipes(journal: JournalReader, run_folder: Path, first: int, last: int) -> dict[int, Recipe]:
    recipes = {
        begin: parse_recipe(as_now(read_yaml(text)), source=str(journal.path))
        for begin, text in recipes_of_steps(journal, first, last).items()
    }
    for key in marked(Recipe, LAYOUT):
        values = {str(value_at(recipe, key)) for recipe in recipes.values()}
        if len(values) > 1:
            raise InputError(
                f"steps {first} to {last} were trained with different values of {key} "
                f"({', '.join(sorted(values))}): no single start reproduces them all. Choose a step nearer "
                f"to a checkpoint."
            )
    # The recorded paths may be gone where the run was moved.
    now = load_recipe(run_folder / RECIPE)
    return {begin: with_moved_files(recipe, now) for begin, recipe in recipes.items()}
