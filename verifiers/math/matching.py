"""Things in any order: each wanted one found once among the given ones."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def pair_off(wanted: Sequence[T], given: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """Whether both hold the same things. Equal things are equal, so taking the first match is safe."""
    left = list(given)
    for item in wanted:
        match = next((at for at, other in enumerate(left) if same(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left
