"""A gradient that sits in one row."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent


@dataclass(frozen=True, slots=True)
class OneRowSpike:
    """The gradient norm is far above the usual one and one row carries most of it: clipping has shrunk what
    the batch teaches all other weights."""

    limit: float
    name: str = "gradient_spike"
    key: str = "alarms.spike_row_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        share = history.last("spike_share")
        if share is None or not share > self.limit:
            return None
        norm, times = history.last("spike_norm"), history.last("spike_times")
        text = (
            f"the gradient norm of step {history.step} is {norm:.4g}, {times:.0f} times the usual one, and "
            f"{as_percent(share)} of its square is in {history.text('spike_row')}"
        )
        return Finding(share, self.limit, text)
