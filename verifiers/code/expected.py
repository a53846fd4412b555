"""The value that a call of the program must have, as a row says it."""

import ast
from typing import Any

from verifiers import strict_json
from verifiers.golds import missing_inside


def expected_value(text: Any, where: str) -> Any:
    """A Python or JSON literal in a string, or JSON itself. Raises ValueError, also for NaN and infinity."""
    value = _literal(text, where) if isinstance(text, str) else text
    if found := missing_inside(value):
        raise ValueError(
            f"{where} expects {found}, which is not a value (NaN equals nothing, not even itself); write an "
            "assert statement, such as assert math.isnan(f()) or assert f() == float('inf') with import math"
        )
    return value


def _literal(text: str, where: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    try:
        return strict_json.loads(text)
    except ValueError:
        hint = f"quote a string, as in \"'{text[:20]}'\""
        raise ValueError(
            f"{where} expects {text[:80]!r}, which is not a Python or JSON literal; {hint}"
        ) from None


def contains_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(contains_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(contains_float, value))
    return isinstance(value, float)
