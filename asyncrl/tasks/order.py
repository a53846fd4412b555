"""The tasks of a run by row and in their order. A `TaskTable` makes a task of a packed row when it is asked
for: whether each row can be made into one was checked when the rows were packed.

The order is a pure function of (seed, position) unless a `RowChooser` decides: the number of admitted groups
says which task comes next; with a chooser also what the journal holds of rows that were asked before.
"""

import pickle
import random
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Protocol, overload

from asyncrl.errors import InputError
from asyncrl.records import PolicyVersion, RowVisit, Task
from asyncrl.tasks.packed_rows import PackedTask, PackedTasks, prompt_key
from verifiers.storable import storable


class TaskTable(Sequence[Task]):
    """The tasks of data.train or data.heldout, in the order of their rows."""

    def __init__(self, packed: PackedTasks, make: Callable[[PackedTask], Task]) -> None:
        self._packed = packed
        self._make = make

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        return self._make(self._packed.row(index % len(self)))

    def find(self, task_id: str) -> Task | None:
        """The task of this id."""
        index = self._index(task_id)
        return None if index is None else self[index]

    def levels(self) -> Sequence[float]:
        """How hard each row is; empty where nothing asks that."""
        return self._packed.levels

    def row_of(self, task_id: str, prompt: str | None = None) -> int | None:
        """The row of this id. With a `prompt`, as a journal stores it, the row that has it, wherever that is
        now; None where no row has it."""
        index = self._index(task_id)
        if prompt is None or (index is not None and storable(self._packed.row(index).text) == prompt):
            return index
        found = self._by_prompt.get(prompt_key(prompt), ())
        return next((i for i in found if storable(self._packed.row(i).text) == prompt), None)

    def _index(self, task_id: str) -> int | None:
        label, _, number = task_id.rpartition(":")
        packed = self._packed
        if label not in packed.labels or not number.isdecimal():
            return None
        source = packed.labels.index(label)
        first, *ends = [*packed.starts[source:], len(self)]
        found = bisect_left(packed.numbers, int(number), first, ends[0])
        return found if found < ends[0] and packed.numbers[found] == int(number) else None

    def asking(self, prompt: str) -> list[Task]:
        """The tasks whose prompt, as a journal stores it, is `prompt`."""
        found = [self[index] for index in self._by_prompt.get(prompt_key(prompt), ())]
        return [task for task in found if storable(task.prompt) == prompt]

    def with_prompts(self, prompts: set[str]) -> Iterator[Task]:
        """The tasks that have one of `prompts`."""
        wanted = set(map(prompt_key, prompts))
        for index, key in enumerate(self._packed.prompt_keys):
            if key in wanted and self._packed.row(index).text in prompts:
                yield self[index]

    def with_each_environment(self) -> list[Task]:
        """A task of each environment that the rows name; the first task where they name none."""
        found: dict[str, int] = {}
        for index in range(len(self)):
            found.setdefault(repr(self._packed.row(index).environment), index)
            if len(found) >= len(self._packed.environments):
                break
        return [self[index] for index in found.values()]

    def longest_prompt(self) -> int:
        """The longest prompt in tokens, among those with the most bytes."""
        return max(len(self[index].prompt_tokens) for index in self._packed.longest)

    @cached_property
    def _by_prompt(self) -> dict[int, list[int]]:
        """Prompt key -> rows. Needed only where data changed under a run that resumes."""
        found: dict[int, list[int]] = {}
        for index, key in enumerate(self._packed.prompt_keys):
            found.setdefault(key, []).append(index)
        return found


class TaskList:
    """Finds tasks that are all made already."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks

    def find(self, task_id: str) -> Task | None:
        return next((task for task in self._tasks if task.task_id == task_id), None)

    def asking(self, prompt: str) -> list[Task]:
        return [task for task in self._tasks if storable(task.prompt) == prompt]

    def row_of(self, task_id: str, prompt: str | None = None) -> int | None:
        """As `TaskTable.row_of`."""
        named = (i for i, task in enumerate(self._tasks) if task.task_id == task_id)
        index = next(named, None)
        if prompt is None or (index is not None and storable(self._tasks[index].prompt) == prompt):
            return index
        found = (i for i, task in enumerate(self._tasks) if storable(task.prompt) == prompt)
        return next(found, None)


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
