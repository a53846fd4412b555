"""The order in which training tasks are asked: a pure function of (seed, position).

The number of admitted groups says which task comes next.
"""

import pickle
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from asyncrl.errors import InputError
from asyncrl.records import Task
from asyncrl.tasks.mixture import Mixture
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
    ) -> None:
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

    def at(self, position: int) -> Task:
        source, index = self._mixture.at(position)
        epoch, offset = divmod(index, self._sizes[source])
        return self._tasks[self._starts[source] + self._permutation(source, epoch)[offset]]

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

    def _make_permutation(self, source: int, epoch: int) -> "array[int]":
        order = list(range(self._sizes[source]))
        if self._is_shuffled:
            # The first source has the order that it would have alone.
            suffix = f"-{source}" if source else ""
            random.Random(f"{self._seed}-{epoch}{suffix}").shuffle(order)
        # A tenth of the list's memory.
        return array("L", order)
