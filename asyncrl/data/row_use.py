"""Uses of a row beyond its prompt and answer: the environment that answers its turns, columns that are kept.

Columns are kept where something reads them: environments and tools, an agent, or a verifier that takes the
task. Other rows cost no memory for theirs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import InputError
from asyncrl.recipe import Turns
from asyncrl.records import EnvironmentSpec, VerifierSpec

MAX_DEPTH = 50
"""Objects and lists in one another; a column that is nested deeper is not kept."""


_NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class RowUse:
    """One for all rows that are read for a recipe."""

    turns: Turns | None = None
    """None: no environment is asked, and rows may name any."""
    takes_task: Callable[[VerifierSpec], bool] = lambda spec: False
    """Whether a verifier reads more of a task than a response. Raises InputError where there is none."""
    has_agent: bool = False
    """Whether agents make the trajectories: they get messages and columns."""
    picked: tuple[str, ...] = ()
    """Columns that choose rows, as data.filter names them."""
    has_answers: bool = True
    """Whether something judges responses to the rows: without, no answer of theirs is read."""
    _named: dict[str, EnvironmentSpec] = field(default_factory=dict)
    _known: dict[int, tuple[VerifierSpec, bool]] = field(default_factory=dict)
    """By identity: rows that name the same verifier share its specification."""

    def environment(self, raw: Any, where: str) -> EnvironmentSpec | None:
        """The environment of a row whose column "environment" is `raw`, else the recipe's. Raises
        InputError."""
        if self.turns is None:
            return None
        default = self.turns.environment
        if raw is None:
            return None if default is None else self._spec(default.name, default.options)
        match raw:
            case str(name):
                spec = self._spec(name, self._options(name))
            case {"name": str(name), "options": dict(options)} if len(raw) == 2:
                spec = EnvironmentSpec(name, options)
            case {"name": str(name)} if raw.get("options") is None and raw.keys() <= {"name", "options"}:
                spec = EnvironmentSpec(name)
            case _:
                raise InputError(
                    f'{where}: "environment" is {str(raw)[:80]!r}, expected a name or {{"name": ..., '
                    f'"options": ...}}'
                )
        if not self.turns.is_on():
            raise InputError(
                f'{where}: the row names the environment "{spec.name}", but the recipe has no turns. Set '
                f"turns.environment, or leave the column out."
            )
        return spec

    def keeps_columns(self, verifier: VerifierSpec, where: str) -> bool:
        """Whether something reads the columns of a row with this verifier. Raises InputError."""
        if self.has_agent or (self.turns is not None and self.turns.is_on()):
            return True
        known = self._known.get(id(verifier))
        if known is None or known[0] is not verifier:
            try:
                known = verifier, self.takes_task(verifier)
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
            if len(self._known) > 1000:
                # Each row has options of its own.
                self._known.clear()
            self._known[id(verifier)] = known
        return known[1]

    def _spec(self, name: str, options: Mapping[str, Any]) -> EnvironmentSpec:
        """One object for all rows that have the same options object, such as the recipe's."""
        known = self._named.get(name)
        if known is None or known.options is not options:
            known = self._named[name] = EnvironmentSpec(name, options)
        return known

    def _options(self, name: str) -> Mapping[str, Any]:
        """The recipe's, where a row names the recipe's environment."""
        default = None if self.turns is None else self.turns.environment
        return default.options if default is not None and default.name == name else _NO_OPTIONS


def json_columns(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The columns that JSON can hold: a date, bytes, or a number that is none are left out."""
    return {name: value for name, value in row.items() if isinstance(name, str) and is_json(value)}


def is_json(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether JSON has the value as it is."""
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return math.isfinite(value)
        case list():
            return depth > 0 and all(is_json(inner, depth - 1) for inner in value)
        case dict():
            return depth > 0 and all(
                isinstance(key, str) and is_json(inner, depth - 1) for key, inner in value.items()
            )
    return False
