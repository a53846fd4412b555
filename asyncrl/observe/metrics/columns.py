"""Names of the columns of metrics.jsonl in every tracker and in Prometheus: group/name.

catalog.md is the home of each metric. A column that it does not know keeps its name,
in the group `other`.
"""

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from verifiers.verdict import Outcome

NO_VALUES = ("kind", "time_seconds", "step")
"""Columns that say where a value belongs."""
EVALUATIONS = "eval"
"""Group of what evaluations have."""
BY_VERIFIER = "outcomes_by_verifier_"
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that one tracker or another refuses."""


@functools.cache
def groups() -> dict[str, tuple[str, ...]]:
    """Group -> its columns, in the catalog's order; a family ends in `*`."""
    page = (resources.files("asyncrl.observe.metrics") / "catalog.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## [^\n]*: `(\w+)/`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    cells = {group: re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE) for group, text in sections}
    return {
        group: tuple(column for cell in found for column in re.findall(r"`(.+?)`", cell))
        for group, found in cells.items()
    }


def values_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Name -> value of all numbers in a step, evaluation or benchmark. Text, lists and null have none."""
    match row["kind"]:
        case "step":
            name_of = step_name
        case "eval":
            name_of = _evaluation_name
        case _:
            name_of = f"benchmark/{_plain(str(row['benchmark']))}/{{}}".format
    return {
        name_of(column): float(value)
        for column, value in row.items()
        if column not in NO_VALUES and isinstance(value, (int, float))
    }


@functools.cache
def _known() -> tuple[dict[str, str], dict[str, str]]:
    """Column of a step -> its name. Beginning of a family's columns -> that of their names, longest first."""
    names = {
        column: f"{group}/{column.removeprefix(f'{group}_')}"
        for group, columns in groups().items()
        if group != EVALUATIONS
        for column in columns
    }
    families = sorted((column for column in names if column.endswith("_*")), key=len, reverse=True)
    beginnings = {column[:-1]: f"{names.pop(column)[:-2]}/" for column in families}
    return names, beginnings


def step_name(column: str) -> str:
    """The name of a step's column."""
    names, beginnings = _known()
    if column in names:
        return names[column]
    for beginning, name in beginnings.items():
        if column.startswith(beginning):
            rest = column.removeprefix(beginning)
            return name + (_verifier_and_outcome(rest) if beginning == BY_VERIFIER else _plain(rest))
    return f"other/{_plain(column)}"


def _evaluation_name(column: str) -> str:
    return f"{EVALUATIONS}/{_plain(column)}"


def _verifier_and_outcome(text: str) -> str:
    """ "NAME_OUTCOME", where both may have underscores, as "NAME/OUTCOME"."""
    outcome = next((outcome.value for outcome in Outcome if text.endswith(f"_{outcome.value}")), None)
    return _plain(text) if outcome is None else f"{_plain(text.removesuffix(f'_{outcome}'))}/{outcome}"


def _plain(text: str) -> str:
    """A name that all trackers take, such as "sevens.py-Sevens" for "./sevens.py:Sevens"."""
    return _REFUSED.sub("-", text).strip("-.") or "-"
