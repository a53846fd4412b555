"""The groups of `critic.warmup_run` as tasks whose responses are known: the first ones of a run."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.journal.queue_state import read_totals
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.journal.recorded_groups import read_recorded_groups
from asyncrl.journal.starts import recorded_end
from asyncrl.model.source import find_source
from asyncrl.recipe import Model, Recipe
from asyncrl.recipe.file import shown
from asyncrl.recipe.stage import OF_STAGES
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.records import PolicyVersion, RowVisit, Task, VerifierSpec
from asyncrl.system.files import read_text
from asyncrl.system.places import CHECKPOINTS, JOURNAL, RECIPE
from asyncrl.tasks.digests import tokenizer_digest
from asyncrl.tasks.order import TaskOrder, TaskTable
from verifiers.storable import storable

KEY = "critic.warmup_run"
"""Also the source in the tasks' ids, which no file is called."""


def is_recorded(task_id: str) -> bool:
    return task_id.startswith(f"{KEY}:")


class WarmedOrder(TaskOrder):
    """The first positions are those of recorded tasks, the others those of the order without them."""

    def __init__(
        self, recorded: Sequence[Task], num_recorded: int, tasks: TaskTable | list[Task], **order: Any
    ) -> None:
        """`recorded` is empty once its `num_recorded` groups are asked no longer; `order` as `TaskOrder`."""
        super().__init__(tasks, **order)
        self._recorded = recorded
        self._num_recorded = num_recorded

    def next(self, position: int, version: PolicyVersion) -> Task:
        if position < self._num_recorded:
            return self._recorded[position]
        return super().next(position - self._num_recorded, version)

    def recall(
        self,
        admissions: Iterable[tuple[str, str, PolicyVersion]],
        visits: Iterable[tuple[str, str | None, RowVisit]],
    ) -> None:
        super().recall(
            (each for each in admissions if not is_recorded(each[0])),
            (each for each in visits if not is_recorded(each[0])),
        )

    def find(self, task_id: str, prompt: str, *, may_have_moved: bool = False) -> Task:
        if not is_recorded(task_id):
            return super().find(task_id, prompt, may_have_moved=may_have_moved)
        task = next((task for task in self._recorded if task.task_id == task_id), None)
        if task is None or storable(task.prompt) != prompt:
            raise InputError(
                f"{KEY} has changed since the run began: its journal holds unfinished groups of {task_id}, "
                f"{prompt[:80]!r}. Put that run back as it was, or start over with another run_folder."
            )
        return task


def read_recorded_tasks(recipe: Recipe, model: Path, context_tokens: int) -> list[Task]:
    """As many as the run's warm-up takes; none once it is over, when nothing reads them again. `model` is the
    policy's folder. Raises InputError for a run that cannot be learned from."""
    num_groups = recipe.num_recorded_groups()
    own = find_journal(recipe.folder() / JOURNAL)
    is_over = own is not None and read_totals(own).num_steps_taken >= recipe.critic_warmup_batches()
    if not num_groups or is_over:
        return []
    assert recipe.critic.warmup_run is not None
    run = Path(recipe.critic.warmup_run)
    title = f"{KEY} is {shown(run)}, but"
    journal = _journal(run, title)
    _check_tokenizer(run, model, title)
    samples = recipe.rollout.samples_per_group
    found = read_recorded_groups(journal, samples=samples, most=num_groups)
    if len(found) < num_groups:
        raise InputError(
            f"{title} its journal has the tokens of {len(found)} groups with {samples} graded responses or "
            f"more, and critic.warmup_steps takes {num_groups}. Lower critic.warmup_steps, "
            f"rollout.groups_per_batch or rollout.samples_per_group; runs keep more with a larger "
            f"replay.keep_steps."
        )
    longest = max(
        len(group.prompt_tokens) + max(len(response.tokens) for response in group.responses)
        for group in found
    )
    if longest > context_tokens:
        raise InputError(
            f"{title} one of its responses has {longest} tokens with its prompt, model.context_tokens is "
            f"{context_tokens}. Raise it, or remove {KEY}."
        )
    spec = VerifierSpec("recorded")
    return [
        Task(f"{KEY}:{group.group_id}", group.prompt, group.prompt_tokens, group, spec) for group in found
    ]


def _journal(run: Path, title: str) -> JournalReader:
    journal = find_journal(run / JOURNAL) if (run / RECIPE).is_file() else None
    if journal is None:
        raise InputError(f"{title} no run is there. Name the folder of one that has ended.")
    stage = read_yaml(read_text(run / RECIPE)).get("stage", "rl")
    if stage in OF_STAGES:
        raise InputError(
            f"{title} that run's stage is {stage}: its rows have no rewards. Name a run of stage rl."
        )
    if recorded_end(journal) is None:
        raise InputError(
            f"{title} that run has not ended. Let it end first: asyncrl train {shown(run / RECIPE)}."
        )
    return journal


def _check_tokenizer(run: Path, model: Path, title: str) -> None:
    section = read_yaml(read_text(run / RECIPE))["model"]
    source = find_source(Model(path=section["path"], revision=section.get("revision")))
    exported = sorted((run / CHECKPOINTS).glob("step-*/hf"))
    folders = [*([] if source is None else [source.folder]), *exported]
    there = next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)
    if there is None:
        raise InputError(
            f"{title} the tokenizer of its model {section['path']} is not on this machine. Fetch it."
        )
    if tokenizer_digest(there) != tokenizer_digest(model):
        raise InputError(
            f"{title} its tokens are of another tokenizer, that of {shown(there)}. Name a run of a model "
            f"with the tokenizer of {shown(model)}, or remove {KEY}."
        )
