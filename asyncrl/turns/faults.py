"""Faults of a run's environments and tools: counted, and the first of each cause is a warning."""

import logging
from dataclasses import dataclass, field

from asyncrl.observe.metrics.fault_causes import cause_of

log = logging.getLogger(__name__)

MOST_CAUSES = 20
"""Warned of in a run, so that an environment that fails differently each time does not flood the terminal."""


@dataclass
class TurnFaults:
    """One per run, evaluations included."""

    _causes: set[str] = field(default_factory=set)

    def retried(self, who: str, detail: str) -> None:
        """The conversation is played again with a new process."""
        if self._is_first(f"{who}, retried: {cause_of(detail)}"):
            log.warning(
                "%s failed and is asked again in a new process: %s. Further faults of this cause are "
                "counted, not shown.",
                who,
                detail,
            )

    def gave_up(self, who: str, detail: str) -> None:
        """All retries of a trajectory are spent."""
        if self._is_first(f"{who}: {cause_of(detail)}"):
            log.warning(
                "%s gave no answer to a turn: %s. The trajectory leaves its group (turns.num_fault_retries); "
                "further faults of this cause are counted, not shown.",
                who,
                detail,
            )

    def _is_first(self, cause: str) -> bool:
        if cause in self._causes or len(self._causes) >= MOST_CAUSES:
            return False
        self._causes.add(cause)
        return True
