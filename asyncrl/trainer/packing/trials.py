"""Kernels of other packages are tried before they are used: against the formula, once, on a small input."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor


def find_fault(
    compute: Callable[[], Sequence[Tensor]], expected: Mapping[str, Tensor], tolerance: float
) -> str | None:
    """The fault of what `compute` gives, which should be `expected`, by name; None where there is none.

    `tolerance` is that of the norm of a difference, relative.
    """
    try:
        found = compute()
    # Packages of others: whatever they raise is the reason why they do not serve.
    except Exception as error:
        return in_words(error)
    for (what, right), left in zip(expected.items(), found, strict=True):
        distance = ((left.to(right.dtype) - right).norm() / right.norm()).item()
        # Not the other way round: a comparison with NaN is false.
        if not distance <= tolerance:
            return f"its {what} differ from the formula's by {distance:.2g} of their norm"
    return None


def in_words(error: Exception) -> str:
    """Its type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def is_installed(module: str) -> bool:
    """Whether `module` can be imported; imports its parents."""
    try:
        return importlib.util.find_spec(module) is not None
    # Its parent is not.
    except ModuleNotFoundError:
        return False
