"""The order in which training tasks are asked: a pure function of (seed, position), or a choice of rows or
sources.

The number of admitted groups says which task comes next; with a choice also what the journal holds of rows
that were asked before.
"""

import pickle
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from asyncrl.errors import InputError
from asyncrl.records import PolicyVersion, RowVisit, Task
from asyncrl.tasks.mixture import Mixture
from asyncrl.tasks.pass_rates import SignalShares
from asyncrl.tasks.recorded import KEY, is_recorded
from asyncrl.tasks.selection import RowSelection
from asyncrl.tasks.table import TaskList, TaskTable
from verifiers.storable import storable


@dataclass(frozen=True, slots=True)
class MixturePart:
    """Consecutive tasks that are one source of a mixture."""

    num_tasks: int
    weight: float


class TaskOrder:
    """Position -> task, epoch after epoch: permutations seeded by (seed, epoch), or the file's order.

    With `parts` each source has epochs of its own, and its share of the positions. Raises InputError for a
    weight that is too small.
    """

    def __init__(
        self,
        tasks: TaskTable | list[Task],
        *,
        seed: int,
        is_shuffled: bool,
        parts: Sequence[MixturePart] = (),
        select: Callable[[Sequence[int]], RowSelection] | None = None,
        is_selected: bool = False,
        share: Callable[[Sequence[float]], SignalShares] | None = None,
        recorded: Sequence[Task] = (),
        num_recorded: int = 0,
    ) -> None:
        """`select` makes, from the number of rows of each source, what keeps the record of rows; where
        `is_selected` it chooses them, too. `share` makes, from the weights of `parts`, what chooses the
        source of each group in their place. The first `num_recorded` positions are those of `recorded`,
        whose responses are known; there are none of them once they are no longer asked."""
        self._recorded = {task.task_id: task for task in recorded}
        self._in_front = [*recorded]
        self.num_recorded = num_recorded
        self._tasks = tasks
        self._sizes = [part.num_tasks for part in parts] or [len(tasks)]
        self._starts = [sum(self._sizes[:source]) for source in range(len(self._sizes))]
        try:
            self._mixture = Mixture([part.weight for part in parts] or [1.0], seed=seed)
        except ValueError as error:
            raise InputError(f"data.train has a source whose {error}. Raise its weight.") from error
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._permutation = lru_cache(maxsize=2 * len(self._sizes))(self._make_permutation)
        self._found = tasks if isinstance(tasks, TaskTable) else TaskList(tasks)
        self.selection = None if select is None else select(self._sizes)
        """None where rows need no record."""
        self._is_selected = is_selected
        self._shares = None if share is None else share([part.weight for part in parts])

    def has_memory(self) -> bool:
        """Whether choices depend on earlier groups, which `recall` tells."""
        return self.selection is not None or self._shares is not None

    def next(self, position: int, version: PolicyVersion) -> Task:
        """The task of the group at `position`, which is admitted at the trainer's `version`: called once for
        each group, in their order."""
        if position < self.num_recorded:
            return self._in_front[position]
        position -= self.num_recorded
        if self._shares is None:
            source, index = self._mixture.at(position)
        else:
            source = self._shares.choose(version)
            index = self._shares.num_chosen[source] - 1
        if self.selection is not None and self._is_selected:
            return self._tasks[self.selection.choose(source, position, version)]
        if self.selection is not None:
            self.selection.learn(version)
        return self._in_turn(source, index)

    def visited(self, task: Task, visit: RowVisit) -> None:
        """A group of `task` was graded."""
        if self.has_memory() and (row := self._found.row_of(task.task_id)) is not None:
            self._visited(row, visit)

    def row_of(self, task: Task) -> int | None:
        return self._found.row_of(task.task_id)

    def recall(
        self,
        admissions: Iterable[tuple[str, str, PolicyVersion]],
        visits: Iterable[tuple[str, str | None, RowVisit]],
    ) -> None:
        """Continues from the groups of earlier processes: (task id, prompt, version) of each in order, and
        (task id, prompt, visit) of those that were graded. Rows that are no longer there are left out."""
        if not self.has_memory():
            return
        for task_id, prompt, visit in visits:
            if not is_recorded(task_id) and (row := self._found.row_of(task_id, prompt)) is not None:
                self._visited(row, visit)
        for task_id, prompt, version in admissions:
            if is_recorded(task_id):
                continue
            row = self._found.row_of(task_id, prompt)
            if self.selection is not None and not self._is_selected:
                self.selection.learn(version)
            elif self.selection is not None and row is not None:
                self.selection.admitted(row, version)
            if self._shares is not None and row is not None:
                self._shares.admitted(self._source_of(row), version)

    def _visited(self, row: int, visit: RowVisit) -> None:
        if self.selection is not None:
            self.selection.visited(row, visit)
        if self._shares is not None:
            self._shares.visited(self._source_of(row), visit)

    def _source_of(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1

    def at(self, position: int) -> Task:
        """The task at `position` where neither rows nor sources are chosen."""
        return self._in_turn(*self._mixture.at(position))

    def _in_turn(self, source: int, index: int) -> Task:
        """Task `index` of a source, epoch after epoch."""
        epoch, offset = divmod(index, self._sizes[source])
        return self._tasks[self._starts[source] + self._permutation(source, epoch)[offset]]

    def find(self, task_id: str, prompt: str, *, may_have_moved: bool = False) -> Task:
        """The task that a journal calls `task_id`: the prompt decides, wherever its row stands now.

        `may_have_moved`: the file is not the one that the journal's task ids come from. Raises InputError
        when the data no longer holds the prompt, or holds it with several answers.
        """
        if is_recorded(task_id):
            return self._find_recorded(task_id, prompt)
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

    def _find_recorded(self, task_id: str, prompt: str) -> Task:
        task = self._recorded.get(task_id)
        if task is None or storable(task.prompt) != prompt:
            raise InputError(
                f"{KEY} has changed since the run began: its journal holds unfinished groups of {task_id}, "
                f"{prompt[:80]!r}. Put that run back as it was, or start over with another run_folder."
            )
        return task

    def _make_permutation(self, source: int, epoch: int) -> "array[int]":
        order = list(range(self._sizes[source]))
        if self._is_shuffled:
            # The first source has the order that it would have alone.
            suffix = f"-{source}" if source else ""
            random.Random(f"{self._seed}-{epoch}{suffix}").shuffle(order)
        # A tenth of the list's memory.
        return array("L", order)
