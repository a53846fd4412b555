"""Alarms: a rule that looks at the numbers so far, what it finds, and how that is told."""

import logging
from dataclasses import dataclass
from typing import Protocol

from asyncrl.observe.alarms.history import History

log = logging.getLogger(__name__)

NO_CORRECT = ("no_correct", "alarms.no_correct_steps", "groups")
"""Name, key and view of the alarm that begins in controller/no_correct_alarm.py, which has the responses."""
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


def tell(alarm: Alarm) -> None:
    """Logs it; the keeper of the run's alarms (`AlarmWatch.admit`) finds it in the record."""
    finding = alarm.finding
    if finding is None:
        log.warning("alarm %s is over", alarm.name, extra={"alarm": alarm})
        return
    log.warning(
        "alarm %s: %s; limit %.4g (%s). See %s; `asyncrl view` shows it at #/RUN/%s.",
        alarm.name,
        finding.text,
        finding.limit,
        alarm.key,
        DOCUMENTED,
        alarm.view,
        extra={"alarm": alarm},
    )
