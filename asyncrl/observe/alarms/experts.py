"""The router of a mixture of experts has stopped choosing."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent

TIMES = 1.5
"""With few experts, one gets many tokens anyway: only a rise is news."""


@dataclass(frozen=True, slots=True)
class RouterCollapse:
    """One expert of a layer gets most tokens, whatever they are."""

    limit: float
    name: str = "router_collapse"
    key: str = "alarms.busiest_expert_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("busiest_expert_share"), history.first("busiest_expert_share")
        if now is None or first is None or now <= max(self.limit, TIMES * first):
            return None
        text = (
            f"one expert of a layer gets {as_percent(now)} of the tokens, up from {as_percent(first)} in the "
            f"first steps"
        )
        return Finding(now, self.limit, text)
