"""Counts of what leaves trajectories without tokens to learn from, each with its first example.

The place where it happens adds to the tally. A step's row has the counts and the words, for alarms, for the
error that ends a run without trained tokens, and for the last lines of a run.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

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
