"""Faults of a run's plug-ins: how many each has had since it last answered, and whether to warn of one.

A fault is never a wrong answer, so a plug-in that always faults would drop every group, without end.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from verifiers.storable import RAISED

MIN_SECONDS = 20.0
"""Without an answer before a run ends: what a plug-in's server or a busy machine may take to come back."""
PAUSE_SECONDS = 1.0
"""Before a plug-in is asked again that failed too often, but not yet for long: one that fails at once would
cost a run many groups until then."""
MOST_CAUSES = 20
"""Warned of in a run, so that a plug-in that fails differently each time does not flood the terminal."""

_RAISED = re.compile(re.escape(RAISED) + r"(\w+): ")
_PLACE = re.compile(r"\((\S[^()]*:\d+)\)\Z")
_CHANGING = re.compile(r"(?<!exit code )(?<!\d)\d+(?:\.\d+)?|0x[0-9a-f]+|'[^']*'|\"[^\"]*\"")
_LONGEST = 100


def cause_of(detail: str) -> str:
    """A text that is equal for faults of the same cause, whatever the response."""
    # Search from the last bracket: a message may hold thousands of them.
    raised, place = _RAISED.search(detail), _PLACE.match(detail, max(0, detail.rfind("(")))
    if raised is not None and place is not None:
        return f"{raised.group(1)} at {place.group(1)}"
    words = " ".join(_CHANGING.sub("N", detail).split())
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."


@dataclass(slots=True)
class _Row:
    """The faults of one plug-in since its last answer."""

    num_faults: int
    since_seconds: float


@dataclass
class FaultsInARow:
    """One for each kind of plug-in in a run."""

    max_in_a_row: int
    clock: Callable[[], float] = time.monotonic
    _rows: dict[str, _Row] = field(default_factory=dict)
    _causes: set[str] = field(default_factory=set)

    def answered(self, name: str) -> None:
        """The plug-in has done its work."""
        self._rows.pop(name, None)

    def failed(self, name: str) -> int | None:
        """It has not. Its faults in a row, once they are too many and have lasted; else None."""
        now = self.clock()
        row = self._rows.setdefault(name, _Row(0, now))
        row.num_faults += 1
        if row.num_faults >= self.max_in_a_row and now - row.since_seconds >= MIN_SECONDS:
            return row.num_faults
        return None

    def pause_seconds(self, name: str) -> float:
        """How long to wait before the plug-in is asked again."""
        row = self._rows.get(name)
        return PAUSE_SECONDS if row is not None and row.num_faults >= self.max_in_a_row else 0.0

    def is_first(self, what: str, detail: str) -> bool:
        """Whether to warn: the cause is the first of its kind, and few were warned of."""
        cause = f"{what}: {cause_of(detail)}"
        if cause in self._causes or len(self._causes) >= MOST_CAUSES:
            return False
        self._causes.add(cause)
        return True
