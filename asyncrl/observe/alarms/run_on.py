"""Responses stop ending: the warning that comes before they run into the length limit."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding

TIMES = 10.0
"""Some models begin with unsure ends: only a rise is news."""


@dataclass(frozen=True, slots=True)
class RunOn:
    """The end token, certain before, becomes less likely where responses end. Each version moves it further
    the same way, until what responses learn from shows it (docs/algorithms.md)."""

    limit: float
    name: str = "run_on"
    key: str = "alarms.run_on_p95"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now = history.now("run_on_p95")
        known = [
            value
            for value in (history.first("run_on_p95"), history.before("run_on_p95"))
            if value is not None
        ]
        if now is None or not known or now <= max(self.limit, TIMES * min(known)):
            return None
        text = (
            f"one of twenty responses that ended would have gone on with a probability of {now:.2g} or more, "
            f"{min(known):.2g} before"
        )
        return Finding(now, self.limit, text)
