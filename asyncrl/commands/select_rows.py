"""The rows that `asyncrl select` writes responses to, read again for each pass over them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asyncrl.data.rows import Row, Unanswered, labels_of, train_rows
from asyncrl.recipe import Recipe
from asyncrl.records import Task
from asyncrl.tasks.table import TaskTable
from asyncrl.tasks.task_list import use_of
from asyncrl.tasks.verifier_cache import VerifierCache

SPLIT = "train"


@dataclass(frozen=True)
class SelectedRows:
    recipe: Recipe
    verifiers: VerifierCache
    groups: dict[str, list[int]]
    """Row id -> its groups, of every row that the run asked."""
    table: TaskTable | list[Task] | None = None
    """All rows that can be asked, where those that the run has not asked are wanted, too."""

    def __iter__(self) -> Iterator[Row]:
        """In the order of the data. Raises InputError."""
        use = use_of(self.recipe, self.verifiers)
        for row in train_rows(self.recipe.data, self.recipe.verifying, use):
            if not isinstance(row, Unanswered) and self._is_wanted(row.row_id):
                yield row

    def __len__(self) -> int:
        return len(self.groups) if self.table is None else max(len(self.groups), len(self.table))

    def labels(self) -> Sequence[str]:
        """Labels of the sources of data.train."""
        return labels_of(self.recipe.data.train_sources(), SPLIT)

    def _is_wanted(self, row_id: str) -> bool:
        if row_id in self.groups:
            return True
        return isinstance(self.table, TaskTable) and self.table.row_of(row_id) is not None
