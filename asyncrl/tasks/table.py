"""Tasks made when they are asked for: tokens and parsed answers of one task, not of millions.

Whether each row can be made into a task was checked when the rows were packed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import overload

from asyncrl.records import Task
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
        return _search(packed.numbers, int(number), first, ends[0])

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


def _search(numbers: Sequence[int], number: int, low: int, high: int) -> int | None:
    index = bisect_left(numbers, number, low, high)
    return index if index < high and numbers[index] == number else None
