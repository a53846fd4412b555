"""The folder of one run: its resolved recipe, journal, metrics, logs, checkpoints; one launcher at a time.

A second start with the same recipe resumes; with one that would train something else it is refused.
"""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from asyncrl.data.digests import digest_of
from asyncrl.errors import InputError
from asyncrl.journal.connection import START_OVER, find_damage
from asyncrl.journal.queue_state import compacted_before, newest_commit, read_totals
from asyncrl.journal.reader import find_journal
from asyncrl.journal.starts import (
    RunEnd,
    recorded_end,
    recorded_model,
    recorded_rendering,
    recorded_unsampled,
)
from asyncrl.model.folder import model_digest
from asyncrl.model.source import find_source, is_of_hub
from asyncrl.model.unsampled import find_unsampled
from asyncrl.recipe import Model, Recipe
from asyncrl.recipe.file import dump_recipe, is_moved, load_recipe
from asyncrl.recipe.sections.section import CHANGEABLE, PER_STEP, is_marked, marked, plain_at, value_at
from asyncrl.recipe.sections.trainer import Fall
from asyncrl.recipe.yaml_text import read_yaml, write_yaml
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import export_path, exported_versions, find_newest
from asyncrl.run.metrics_file import read_metrics
from asyncrl.system.files import write_whole
from asyncrl.system.paths import nearest_run
from asyncrl.system.places import (
    CALL,
    CHECKPOINTS,
    CONTROLLER_URL,
    JOURNAL,
    LOCK,
    LOGS,
    METRICS,
    RECIPE,
    TOKEN,
)
from asyncrl.system.words import as_written


class RunFolder:
    """Opened for writing by one launcher; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / LOGS
        self.journal = path / JOURNAL
        self.metrics = path / METRICS
        self.controller_url = path / CONTROLLER_URL
        """Where the running controller listens; there only while it runs."""
        self.token = path / TOKEN
        """Token that the processes of the run show each other; there only while it runs."""
        self.resumption = Resumption(0, [])
        """The point that `check` found the run to resume from."""
        self._lock: IO[str] | None = None

    def check(self, recipe: Recipe) -> bool:
        """True when the folder holds a run that `recipe` resumes. Raises InputError when it cannot."""
        if not os.path.isfile(self.path / RECIPE):
            if self.path.is_dir() and any(entry.name not in (LOCK, CALL) for entry in self.path.iterdir()):
                raise InputError(
                    f"run_folder {self.path} is not empty and holds no run. Name another one, or empty it."
                )
            _check_place(self.path)
            return False
        there = load_recipe(self.path / RECIPE)
        self.resumption = find_resumption(self.path)
        difference = first_difference(there, recipe)
        if difference is not None and not self._has_begun():
            return False
        if difference is not None:
            key, old, new = difference
            raise InputError(
                f"run_folder {self.path} holds a run with {key} = {as_written(old)}, the recipe now says "
                f"{as_written(new)}. To resume, put the old value back; to start over, set run_folder (or "
                f"name) to a new one."
            )
        self._check_model(recipe.model)
        self._check_unsampled(recipe)
        if self._has_begun():
            remarks = rate_remarks(there, recipe, self.resumption.version)
            self.resumption = replace(self.resumption, remarks=[*self.resumption.remarks, *remarks])
        return True

    def _check_model(self, section: Model) -> None:
        """Raises InputError where `section` names another model than at the first start. One that cannot be
        read is no matter of the run's folder: a complete run needs none."""
        journal, source = find_journal(self.journal), find_source(section)
        known = None if journal is None else recorded_model(journal)
        found = None if source is None else model_digest(source.folder)
        if None not in (known, found) and known != found and self._has_begun():
            raise InputError(
                f"run_folder {self.path} holds a run that began with another base model than {section.path} "
                f"is now: config.json or safetensors files differ. Put the model back, or set run_folder (or "
                f"name) to a new one to start over."
            )

    def _check_unsampled(self, recipe: Recipe) -> None:
        """Raises InputError where the run's log-probs are of another distribution than would be trained."""
        journal, source = find_journal(self.journal), find_source(recipe.model)
        is_readable = journal is not None and source is not None and source.folder.is_dir()
        if not is_readable or not self._has_begun() or self.end(recipe) is not None:
            return
        assert journal is not None and source is not None
        known = recorded_unsampled(journal)
        now = str(find_unsampled(source.folder, recipe.rollout.stop_tokens))
        if known != now:
            raise InputError(
                f"run_folder {self.path} holds a run that never samples the token ids {known or 'none'!r}; "
                f"now they are {now or 'none'!r}: log-probs of its tokens would be of another distribution. "
                f"Use the version of asyncrl and the tokenizer files that the run began with, {START_OVER}."
            )

    def end(self, recipe: Recipe) -> RunEnd | None:
        """How the run ended, if `recipe` asks no more of it: only the report is left to show."""
        journal = find_journal(self.journal)
        end = None if journal is None else recorded_end(journal)
        return end if end is not None and end.holds(recipe) else None

    def rendering_time(self) -> datetime | None:
        """The time that the run's prompts were rendered at; None before its first start."""
        journal = find_journal(self.journal)
        return None if journal is None else recorded_rendering(journal)

    def _has_begun(self) -> bool:
        """Whether anything was ever admitted: before that there is nothing to protect."""
        journal = find_journal(self.journal)
        return journal is not None and read_totals(journal).num_admitted > 0

    def open(self, recipe: Recipe) -> None:
        """Creates the folder and takes its lock. Raises InputError when another process holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.take_lock()
        self.logs.mkdir(exist_ok=True)
        # Where the folder is now: when it is moved, what lies around it is found from there.
        here = recipe.model_copy(update={"run_folder": os.path.abspath(self.path)})
        write_whole(self.path / RECIPE, dump_recipe(here))

    def take_lock(self) -> None:
        """Keeps other processes from writing into an existing folder. Raises InputError when one does."""
        self._lock = (self.path / LOCK).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read().strip()
            self.close()
            raise InputError(
                f"run_folder {self.path} is in use by process {holder}. Wait for it, stop it, or use another "
                f"folder."
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def newest_export(self) -> Path | None:
        """The newest Hugging Face folder among the checkpoints."""
        found = exported_versions(self.path)
        return export_path(self.path, found[-1]) if found else None


def read_run_recipe(path: Path) -> Recipe:
    """The resolved recipe of an existing run. Raises InputError."""
    if not (path / RECIPE).is_file():
        raise InputError(f"{path} is not a run folder: it has no {RECIPE}.{nearest_run(path)}")
    return load_recipe(path / RECIPE)


def with_recorded_commit(recipe: Recipe) -> Recipe:
    """`recipe` at the commit of the hub's model that its run began with, whatever the hub has by now.

    Another revision stays, unless the cache knows it as that commit: it may be the branch or tag that the run
    began with. Asks no hub.
    """
    written = recipe.folder() / RECIPE
    if not is_of_hub(recipe.model) or not written.is_file():
        return recipe
    there = load_recipe(written).model
    if there.path != recipe.model.path or there.revision is None:
        return recipe
    source = None if recipe.model.revision is None else find_source(recipe.model)
    if recipe.model.revision is not None and (source is None or source.commit != there.revision):
        return recipe
    return with_commit(recipe, there.revision)


def with_commit(recipe: Recipe, commit: str) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"revision": commit})})


def data_digests(recipe: Recipe) -> dict[str, str]:
    """data.train and data.heldout -> digest of what their sources hold now. Raises InputError."""
    sources = {"data.train": recipe.data.train_sources(), "data.heldout": recipe.data.heldout_sources()}
    return {key: digest_of(named, key) for key, named in sources.items() if named}


def first_difference(there: Recipe, now: Recipe) -> tuple[str, Any, Any] | None:
    """(key, value there, value now) of the first key that must not differ between starts and does."""
    return next(_different(there.model_dump(), now.model_dump(), "", type(now)), None)


def _different(there: Any, now: Any, key: str, recipe: type[Recipe]) -> Iterator[tuple[str, Any, Any]]:
    """Differences in the values of `key`; "" is the whole recipe."""
    if is_marked(recipe, key, CHANGEABLE) or is_marked(recipe, key, PER_STEP):
        return
    if isinstance(there, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*there, *now]):
            inner = f"{key}.{name}".removeprefix(".")
            yield from _different(there.get(name), now.get(name), inner, recipe)
    elif there != now and not is_moved(key, there, now):
        yield key, read_yaml(write_yaml(there)), read_yaml(write_yaml(now))


def _check_place(path: Path) -> None:
    """Raises InputError where no folder can be made at `path`: at a file, below one, at a link to nowhere."""
    for place in (path, *path.parents):
        if os.path.isdir(place):
            return
        if os.path.islink(place) and not os.path.exists(place):
            raise InputError(
                f"run_folder {path}: {place} is a broken link. Remove it, or name another folder."
            )
        if os.path.lexists(place):
            raise InputError(f"run_folder {path}: {place} is a file. Name a folder.")


# A resumed recipe is checked before anything starts, so that what the terminal says is what the trainer does:
# it chooses its checkpoint by the same function.
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
    is_falling = all(isinstance(recipe.trainer.learning_rate_schedule, Fall) for recipe in (there, now))
    if (
        is_falling
        and value_at(now, "trainer.learning_rate_schedule.steps") is None
        and there.trainer.num_steps != now.trainer.num_steps
    ):
        keys.append("trainer.num_steps")
    if not keys:
        return []
    values = ((key, *(as_written(plain_at(recipe, key)) for recipe in (there, now))) for key in keys)
    changes = ", ".join(f"{key} {old} -> {new}" for key, old, new in values)
    before, after = (recipe.policy_schedule().rate(version) for recipe in (there, now))
    return [
        f"learning rates change from step {version + 1} on: {changes}. The policy's at that step is "
        f"{after:g}, and would have been {before:g}."
    ]
