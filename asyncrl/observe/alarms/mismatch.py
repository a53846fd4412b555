"""Trainer and servers disagree about the policy, or the correction for that is at its limits."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding

GROWTH = 10.0
"""Times the first steps' KL, from a tenth of the limit on."""
SHARE_OF_LIMIT = 0.1


@dataclass(frozen=True, slots=True)
class MismatchTrend:
    """KL of tokens of the current version: large, or far larger than at first. Where a step has none that
    were sampled on the current version's cache, those on an older version's cache are taken."""

    limit: float
    name: str = "mismatch_kl"
    key: str = "alarms.mismatch_kl"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        for column in ("mismatch_kl", "continued_kl"):
            now, first = history.now(column), history.first(column)
            if now is None:
                continue
            has_grown = first is not None and now > max(SHARE_OF_LIMIT * self.limit, GROWTH * first)
            if now > self.limit or has_grown:
                before = "" if first is None else f", {first:.1e} in the first steps"
                text = f"the KL between trainer and servers is {now:.1e} nats per token{before}"
                return Finding(now, self.limit, text)
            return None
        return None


@dataclass(frozen=True, slots=True)
class LargeShare:
    """A share of the tokens that is above its limit."""

    limit: float
    column: str
    words: str
    name: str
    key: str
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now = history.now(self.column)
        if now is None or now <= self.limit:
            return None
        return Finding(now, self.limit, f"{now:.1%} of the tokens {self.words}")


def capped_share(limit: float) -> LargeShare:
    words = "have an importance weight at algorithm.importance_cap"
    return LargeShare(limit, "capped_share", words, "capped_share", "alarms.capped_share")


def clipped_share(limit: float) -> LargeShare:
    words = "have no gradient, since the surrogate clips them"
    return LargeShare(limit, "clipped_share", words, "clipped_share", "alarms.clipped_share")
