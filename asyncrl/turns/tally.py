"""Faults of a run's environments and tools, and counts of what leaves trajectories without tokens to learn
from.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import AsyncrlError
from asyncrl.system.plugins import FaultsInARow

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


ENDINGS = {
    "agents_replied": "replied",
    "agents_refused": "refused",
    "agents_late": "timed out",
    "agents_without_call": "no call",
    "agent_faults": "crashed",
}
"""Column -> how an agent's program ended. Each start of a program counts in one of them."""
AGENTS = (*ENDINGS, "agent_refused_calls")
TURNS = ("environment_faults", "unknown_tool_calls", "empty_turns")
CAUSES = {
    "agents_refused": "agents with every call refused",
    "agents_late": "agents over agent.timeout_seconds",
    "agents_without_call": "agents without a call of the model",
    "agent_faults": "agents that crashed",
    "agent_refused_calls": "refused calls of agents",
    "environment_faults": "faults of environments and tools",
    "unknown_tool_calls": "calls of a tool that the recipe lacks",
    "empty_turns": "turns without room for a token",
}
"""Column -> what it counts."""
WORDS = "causes"
"""Column of a step with all causes so far, as a sentence; missing without any."""
EXAMPLE_CHARACTERS = 200


@dataclass
class Tally:
    """One per run, and one per evaluation, which no row has."""

    columns: Sequence[str]
    """Those that each row has."""
    warned: set[str] = field(default_factory=set)
    """Causes that were warned of; a run and its evaluations share them."""
    counts: Counter[str] = field(default_factory=Counter)
    """Since the start."""
    _told: Counter[str] = field(default_factory=Counter)
    """`counts` as the last row had them."""
    _examples: dict[str, str] = field(default_factory=dict)

    def add(self, column: str, example: str = "", *, is_known: bool = False) -> None:
        """Counts; the first of each cause is a warning, unless the person has been told (`is_known`)."""
        self.counts[column] += 1
        if column not in CAUSES or column in self._examples:
            return
        self._examples[column] = " ".join(example.split())[:EXAMPLE_CHARACTERS].rstrip(".")
        if not is_known and column not in self.warned:
            self.warned.add(column)
            words = f"{CAUSES[column]}, the first: {self._examples[column]}"
            log.warning("%s. Further ones are counted (%s), not shown.", words, column)

    def row(self) -> dict[str, Any]:
        """Columns of a step: the counts since the last row, and all causes in words."""
        new = {column: self.counts[column] - self._told[column] for column in self.columns}
        self._told = self.counts.copy()
        words = "; ".join(
            f"{CAUSES[column]}: {self.counts[column]:,} (the first: {example})"
            for column, example in self._examples.items()
        )
        return new | ({WORDS: words} if words else {})


def endings(rows: Iterable[Mapping[str, Any]]) -> str:
    """How the agents of these steps ended, with counts; empty without agents."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update({column: row.get(column) or 0 for column in ENDINGS})
    return ", ".join(f"{total[column]:,} {word}" for column, word in ENDINGS.items() if total[column])
