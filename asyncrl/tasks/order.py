"""The order in which training tasks are asked: a pure function of (seed, position), unless a chooser decides.

The number of admitted groups says which task comes next; with a chooser also what the journal holds of rows
that were asked before.
"""

import pickle
import random
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from asyncrl.errors import InputError
from asyncrl.records import PolicyVersion, RowVisit, Task
from asyncrl.tasks.table import TaskList, TaskTable
from verifiers.storable import storable


class Epochs:
    """Rows epoch after epoch: permutations seeded by (seed, epoch, source), or the order of the file."""

    def __init__(self, num_rows: int, *, seed: int, is_shuffled: bool, source: int = 0) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._is_shuffled = is_shuffled
        # The first source has the order that it would have alone.
        self._suffix = f"-{source}" if source else ""
        self._permutation = lru_cache(maxsize=2)(self._make_permutation)

    def at(self, index: int) -> int:
        """The row that is asked after `index` others."""
        epoch, offset = divmod(index, self._num_rows)
        return self._permutation(epoch)[offset]

    def _make_permutation(self, epoch: int) -> "array[int]":
        order = list(range(self._num_rows))
        if self._is_shuffled:
            random.Random(f"{self._seed}-{epoch}{self._suffix}").shuffle(order)
        # A tenth of the list's memory.
        return array("L", order)


class RowChooser(Protocol):
    """Chooses the row of each group, where that is not the next one of an epoch."""

    has_memory: bool
    """Whether choices depend on earlier groups, which `admitted` and `visited` tell."""

    def choose(self, position: int, version: PolicyVersion) -> int:
        """The row of the group at `position`, which is admitted at the trainer's `version`: called once for
        each group, in their order."""

    def admitted(self, row: int | None, version: PolicyVersion) -> None:
        """An earlier process chose `row`; None for one that is no longer there."""

    def visited(self, row: int, visit: RowVisit) -> None:
        """A group of `row` was graded."""


class TaskOrder:
    """Position -> task, by `chooser` or epoch after epoch."""

    def __init__(
        self,
        tasks: TaskTable | list[Task],
        *,
        seed: int,
        is_shuffled: bool,
        chooser: RowChooser | None = None,
    ) -> None:
        self._tasks = tasks
        self._epochs = Epochs(len(tasks), seed=seed, is_shuffled=is_shuffled)
        self._found = tasks if isinstance(tasks, TaskTable) else TaskList(tasks)
        self.chooser = chooser

    def has_memory(self) -> bool:
        """Whether choices depend on earlier groups, which `recall` tells."""
        return self.chooser is not None and self.chooser.has_memory

    def next(self, position: int, version: PolicyVersion) -> Task:
        """The task of the group at `position`; called as `RowChooser.choose`."""
        if self.chooser is None:
            return self._tasks[self._epochs.at(position)]
        return self._tasks[self.chooser.choose(position, version)]

    def visited(self, task: Task, visit: RowVisit) -> None:
        """A group of `task` was graded."""
        if self.chooser is not None and (row := self.row_of(task)) is not None:
            self.chooser.visited(row, visit)

    def row_of(self, task: Task) -> int | None:
        return self._found.row_of(task.task_id)

    def recall(
        self,
        admissions: Iterable[tuple[str, str, PolicyVersion]],
        visits: Iterable[tuple[str, str | None, RowVisit]],
    ) -> None:
        """Continues from the groups of earlier processes: (task id, prompt, version) of each in order, and
        (task id, prompt, visit) of those that were graded. Rows that are no longer there are left out."""
        if self.chooser is None:
            return
        for task_id, prompt, visit in visits:
            if (row := self._found.row_of(task_id, prompt)) is not None:
                self.chooser.visited(row, visit)
        for task_id, prompt, version in admissions:
            self.chooser.admitted(self._found.row_of(task_id, prompt), version)

    def find(self, task_id: str, prompt: str, *, may_have_moved: bool = False) -> Task:
        """The task that a journal calls `task_id`: the prompt decides, wherever its row stands now.

        `may_have_moved`: the file is not the one that the journal's task ids come from. Raises InputError
        when the data no longer holds the prompt, or holds it with several answers.
        """
        task = self._found.find(task_id)
        if task is not None and storable(task.prompt) == prompt and not may_have_moved:
            return task
        found = self._found.asking(prompt)
        asked = f"its journal holds unfinished answers to {task_id}, {prompt[:80]!r}"
        if not found:
            raise InputError(
                f"data.train has changed since the run began: {asked}, and no row has that prompt anymore. "
                f"Put the row back (its place in the file does not matter), or start over with another "
                f"run_folder."
            )
        if len({pickle.dumps((t.reference, t.verifier, t.environment, t.row)) for t in found}) > 1:
            raise InputError(
                f"data.train has changed since the run began: {asked}, a prompt that several rows now have "
                f"with different answers or columns ({', '.join(t.task_id for t in found[:5])}). Put the "
                f"file back as it was, or start over with another run_folder."
            )
        return found[0]
