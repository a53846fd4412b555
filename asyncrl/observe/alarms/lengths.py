"""Responses that grow or shrink without being correct more often."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent

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
