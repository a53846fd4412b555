"""The use of data.filter and data.selection.column on a row: whether it is asked, and how hard it is."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from asyncrl.data.rows import Row, Unanswered
from asyncrl.errors import InputError
from asyncrl.recipe import Data
from asyncrl.recipe.row_filter import RowFilter
from asyncrl.system.words import as_written


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The default uses every row."""

    filter: RowFilter | None = None
    level_column: str | None = None

    @classmethod
    def of(cls, data: Data) -> "RowChoice":
        return cls(data.row_filter(), data.selection.column)

    def columns(self) -> tuple[str, ...]:
        """Columns that rows have to pick."""
        named = () if self.filter is None else self.filter.columns()
        return tuple(dict.fromkeys([*named, *([] if self.level_column is None else [self.level_column])]))

    def wants(self, row: Row | Unanswered) -> bool:
        """Raises InputError for a value that the filter cannot compare."""
        try:
            return self.filter is None or self.filter.holds(row.picked)
        except ValueError as error:
            raise InputError(f"{row.where}: {error}. Correct the row, or data.filter.") from error

    def level(self, row: Row) -> float | None:
        """How hard the row is; None where nothing asks. Raises InputError for what is no number."""
        if self.level_column is None:
            return None
        level = row.picked[self.level_column]
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not math.isfinite(level):
            raise InputError(
                f'{row.where}: "{self.level_column}" is {as_written(level)[:80]}, expected a number, by '
                f"which data.selection.column orders rows. Correct the row, or leave such rows out by "
                f"data.filter."
            )
        return float(level)


@dataclass
class WantedRows:
    """The rows that `choice` wants, in their order; others are counted as they are passed."""

    rows: Iterable[Row | Unanswered]
    choice: RowChoice
    num_left_out: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[Row | Unanswered]:
        """Raises InputError."""
        for row in self.rows:
            if self.choice.wants(row):
                yield row
            else:
                self.num_left_out += 1
