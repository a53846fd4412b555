"""Responses that grow or shrink without being correct more often."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent

CORRECT_RISE = 0.02
"""Rise from which longer or shorter responses have paid."""
CUT_RISE = 0.2


@dataclass(frozen=True, slots=True)
class LengthExplosion:
    """Longer and longer, or more and more of them cut at the limit."""

    growth: float | None
    cut_share: float | None
    name: str = "length_explosion"
    key: str = "alarms.length_growth, alarms.cut_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        steps = history.steps_back()
        cut, cut_before = history.now("cut_share"), history.before("cut_share")
        if self.cut_share is not None and cut is not None and cut_before is not None:
            if cut > self.cut_share and cut > cut_before + CUT_RISE and not has_paid(history):
                text = (
                    f"{as_percent(cut)} of the responses are cut, {as_percent(cut_before)} were {steps} "
                    f"steps before"
                )
                return Finding(cut, self.cut_share, text)
        now, before = history.now("response_tokens_mean"), history.before("response_tokens_mean")
        if self.growth is None or now is None or not before:
            return None
        if now < self.growth * before or has_paid(history):
            return None
        return Finding(now / before, self.growth, _words("grew", before, now, steps))


@dataclass(frozen=True, slots=True)
class LengthCollapse:
    """Shorter and shorter: the reasoning is gone."""

    limit: float
    name: str = "length_collapse"
    key: str = "alarms.length_shrink"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, before = history.now("response_tokens_mean"), history.before("response_tokens_mean")
        if now is None or not before or now > self.limit * before or has_paid(history):
            return None
        return Finding(now / before, self.limit, _words("shrank", before, now, history.steps_back()))


def has_paid(history: History) -> bool:
    """Whether more responses are correct than before; also where that is not known."""
    rise = history.rise("correct_mean")
    return rise is None or rise >= CORRECT_RISE


def _words(verb: str, before: float, now: float, steps: int) -> str:
    return (
        f"responses {verb} from {before:.0f} to {now:.0f} tokens in {steps} steps, without more correct ones"
    )
