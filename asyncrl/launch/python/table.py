"""Rows as a list that shows itself as a table in a notebook; `pandas.DataFrame(table)` takes it as it is."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

from asyncrl.errors import InputError, did_you_mean

NUM_SHOWN = 20


class Table(list[dict[str, Any]]):
    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(dict(row) for row in rows)

    @property
    def columns(self) -> list[str]:
        """All names, in the order in which rows bring them."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """The values of a column; None where a row has none. Raises InputError where no row has it."""
        if self and not any(name in row for row in self):
            near = did_you_mean(str(name), self.columns, f" They have {', '.join(self.columns)}.")
            raise InputError(f"The rows have no column {name}.{near}")
        return [row.get(name) for row in self]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        lines = "".join(self._line(row) for row in self[-NUM_SHOWN:])
        more = f"<p>the last {NUM_SHOWN} of {len(self)} rows</p>" if len(self) > NUM_SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>{more}"

    def _line(self, row: Mapping[str, Any]) -> str:
        return "<tr>" + "".join(f"<td>{_shown(row.get(name))}</td>" for name in self.columns) + "</tr>"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else html.escape(str(value))
