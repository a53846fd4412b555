"""Rows of sums with a worked answer: the `columns` of a recipe that learns them.

Sums of two numbers are worked column by column inside <think>, without a slip; the box has the sum.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from asyncrl.examples.rows import work_addition


def with_working(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row {"prompt": "347+85=", ...} with its "response". Raises ValueError for another prompt."""
    first, second = row["prompt"].removesuffix("=").split("+")
    working, total = work_addition((int(first), int(second)), Random(0), 0.0)
    return {**row, "response": f"<think>{working}</think>\\boxed{{{total}}}"}
