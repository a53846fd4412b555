"""Alarms: a rule that looks at the numbers so far, what it finds, and how that is told."""

from dataclasses import dataclass
from typing import Protocol

from asyncrl.observe.alarms.history import History

NO_CORRECT = ("no_correct", "alarms.no_correct_steps", "groups")
"""Name, key and view of the alarm that begins in no_correct.py, which has the responses."""
DOCUMENTED = "docs/alarms.md"


@dataclass(frozen=True, slots=True)
class Finding:
    """The evidence, while an alarm's condition holds."""

    value: float
    limit: float
    text: str
    """One sentence without a full stop: what moved, from where to where."""


class Rule(Protocol):
    """One alarm. Its findings depend on the history alone: a missing column finds nothing."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str:
        """The recipe key of its threshold."""
        ...

    @property
    def view(self) -> str:
        """The tab of the page that shows the evidence."""
        ...

    def check(self, history: History) -> Finding | None: ...


@dataclass(frozen=True, slots=True)
class Alarm:
    """Begins with a finding, or has ended with none."""

    name: str
    key: str
    view: str
    step: int
    finding: Finding | None

    @property
    def is_on(self) -> bool:
        return self.finding is not None

    def words(self) -> str:
        """For people: the evidence, the limit and where both are explained."""
        finding = self.finding
        if finding is None:
            return f"alarm {self.name} is over"
        return (
            f"alarm {self.name}: {finding.text}; limit {finding.limit:.4g} ({self.key}). See {DOCUMENTED}; "
            f"`asyncrl view` shows it at #/RUN/{self.view}."
        )
