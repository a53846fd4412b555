"""Faults of a run's environments and tools: the first of each cause is a warning; one that no longer answers
ends the run."""

import logging
from dataclasses import dataclass, field

from asyncrl.errors import AsyncrlError
from asyncrl.system.faults_in_a_row import FaultsInARow

log = logging.getLogger(__name__)


class EnvironmentFailed(AsyncrlError):
    """An environment or a tool no longer answers; the message holds its own error."""


@dataclass
class TurnFaults:
    """One per run, evaluations included."""

    in_a_row: FaultsInARow = field(default_factory=lambda: FaultsInARow(24))

    def answered(self, who: str) -> None:
        self.in_a_row.answered(who)

    def failed(self, who: str, detail: str, trace: str) -> None:
        """Raises EnvironmentFailed when that lasts too long."""
        number = self.in_a_row.failed(who)
        if number is not None:
            raise EnvironmentFailed(
                f"{who} failed {number} times in a row (turns.max_faults_in_a_row), the last time: "
                f"{detail}\n{trace}".rstrip()
                + "\nFix it (docs/turns.md shows how to check it) and run the "
                "same command again: the run resumes, with every turn that it has."
            )

    def retried(self, who: str, detail: str) -> None:
        """The conversation is played again with a new process."""
        if self.in_a_row.is_first(f"{who}, retried", detail):
            log.warning(
                "%s failed and is asked again in a new process: %s. Further faults of this cause are "
                "counted, not shown.",
                who,
                detail,
            )

    def gave_up(self, who: str, detail: str) -> None:
        """All retries of a trajectory are spent."""
        if self.in_a_row.is_first(who, detail):
            log.warning(
                "%s gave no answer to a turn: %s. The trajectory leaves its group (turns.num_fault_retries); "
                "further faults of this cause are counted, not shown.",
                who,
                detail,
            )
