"""State of a run that was begun before: readable or refused, and the version that it resumes from.

Checked before anything starts, so that what the terminal says is what the trainer does: it chooses its
checkpoint by the same function.
"""

from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.journal.compaction import compacted_before
from asyncrl.journal.connection import START_OVER, find_damage
from asyncrl.journal.queue_state import newest_commit, read_totals
from asyncrl.journal.reader import find_journal
from asyncrl.recipe import Recipe
from asyncrl.recipe.markers import PER_STEP, marked, value_at
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import find_newest
from asyncrl.run.metrics_file import read_metrics
from asyncrl.system.kinds import as_written
from asyncrl.system.run_files import CHECKPOINTS, JOURNAL, METRICS


@dataclass(frozen=True, slots=True)
class Resumption:
    version: PolicyVersion
    """Version of the checkpoint that the trainer begins with; 0 is the base model."""
    remarks: list[str]
    """Remarks for the user: a sentence per checkpoint that cannot be used, and one where learning rates
    change."""


def find_resumption(run_folder: Path) -> Resumption:
    """Reads all of the journal, the metrics and the newest checkpoint. Raises InputError when the run cannot
    resume from what is there."""
    newest = find_newest(run_folder / CHECKPOINTS)
    has_steps = bool(read_metrics(run_folder / METRICS).steps)
    version = newest.version
    num_taken, committed, compacted = _read_journal(run_folder / JOURNAL, has_steps or version > 0)
    if version > num_taken:
        raise InputError(
            f"{run_folder} has a checkpoint of step {version}, but its {JOURNAL} knows of {num_taken} "
            f"steps: it is of another run, or was begun again. Put the run's own journal back, {START_OVER}."
        )
    if version < compacted:
        whys = "".join(f" The one of step {step} is damaged: {why}." for step, why in newest.faults.items())
        raise InputError(
            f"{run_folder} cannot resume: its journal no longer holds the tokens of steps 1 to {compacted}, "
            f"and the newest complete checkpoint is of step {version}.{whys} Put a checkpoint of step "
            f"{compacted} or later back, {START_OVER}."
        )
    remarks = newest.remarks()
    if committed > max(version, *newest.faults, 0):
        remarks.append(f"the checkpoint of step {committed} is gone. Training goes back to step {version}.")
    return Resumption(version, remarks)


def _read_journal(path: Path, has_begun: bool) -> tuple[int, PolicyVersion, int]:
    """Steps taken, the newest version committed, the step before which tokens are compacted."""
    if not path.is_file():
        if not has_begun:
            return 0, 0, 0
        raise InputError(
            f"{path} is gone, the only record of what the run has generated and trained. Put it "
            f"back, {START_OVER}."
        )
    if (damage := find_damage(path)) is not None:
        raise InputError(f"{path} is damaged ({damage}). Put it back, {START_OVER}.")
    journal = find_journal(path)
    if journal is None:
        return 0, 0, 0
    return read_totals(journal).num_steps_taken, newest_commit(journal), compacted_before(journal)


def rate_remarks(there: Recipe, now: Recipe, version: PolicyVersion) -> list[str]:
    """A sentence where steps after `version` train at other rates than under `there`, the recipe before."""
    keys = [key for key in marked(Recipe, PER_STEP) if value_at(there, key) != value_at(now, key)]
    is_falling = "constant" not in (there.trainer.learning_rate_schedule, now.trainer.learning_rate_schedule)
    if is_falling and now.trainer.schedule_steps is None and there.trainer.num_steps != now.trainer.num_steps:
        keys.append("trainer.num_steps")
    if not keys:
        return []
    changes = ", ".join(f"{key} {_written(there, key)} -> {_written(now, key)}" for key in keys)
    before, after = (recipe.policy_schedule().rate(version) for recipe in (there, now))
    return [
        f"learning rates change from step {version + 1} on: {changes}. The policy's at that step is "
        f"{after:g}, and would have been {before:g}."
    ]


def _written(recipe: Recipe, key: str) -> str:
    return as_written(value_at(recipe, key))
