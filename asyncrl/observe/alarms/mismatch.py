"""Trainer and servers disagree about the policy, or the correction for that is at its limits."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent

SHARE_OF_FIRST = 0.5
"""Long responses have few effective ones from the first step on: only a fall is news."""


@dataclass(frozen=True, slots=True)
class EffectiveSamples:
    """Effective sample size of the unclipped importance weights, of sequences, or of single tokens, which
    says something of long responses too (VCPO, arXiv 2602.17616: it falls before rewards do)."""

    limit: float
    name: str = "effective_samples"
    key: str = "alarms.effective_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("sequence_effective_share"), history.first("sequence_effective_share")
        if now is not None and first is not None and now < min(self.limit, SHARE_OF_FIRST * first):
            text = (
                f"the sequences of a step weigh as much as {as_percent(now)} of them would equally, "
                f"{as_percent(first)} in the first steps"
            )
            return Finding(now, self.limit, text)
        of_tokens = history.now("token_effective_share")
        if of_tokens is None or of_tokens >= self.limit:
            return None
        text = f"the tokens of a step weigh as much as {as_percent(of_tokens)} of them would equally"
        return Finding(of_tokens, self.limit, text)


GROWTH = 10.0
"""Growth over the first steps' KL, from a tenth of the limit on."""
SHARE_OF_LIMIT = 0.1
OLDER_CACHE = 2.0
"""Factor on the limit for tokens on an older version's cache: single steps in bfloat16 reach 0.009 nats."""


@dataclass(frozen=True, slots=True)
class MismatchTrend:
    """KL of tokens of the current version: large, or far larger than at first.

    Where steps have no such token that was sampled on the current version's cache, those on an older
    version's cache are taken. Their KL holds what the update changed, too, so that only its size counts.
    """

    limit: float
    name: str = "mismatch_kl"
    key: str = "alarms.mismatch_kl"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("mismatch_kl"), history.first("mismatch_kl")
        if now is None:
            continued = history.now("continued_kl")
            limit = OLDER_CACHE * self.limit
            if continued is None or continued <= limit:
                return None
            text = f"the KL between trainer and servers is {continued:.1e} nats per token, on an older cache"
            return Finding(continued, limit, text)
        has_grown = first is not None and now > max(SHARE_OF_LIMIT * self.limit, GROWTH * first)
        if now <= self.limit and not has_grown:
            return None
        before = "" if first is None else f", {first:.1e} in the first steps"
        text = f"the KL between trainer and servers is {now:.1e} nats per token{before}"
        return Finding(now, self.limit, text)


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
        return Finding(now, self.limit, f"{as_percent(now, 1)} of the tokens {self.words}")


def capped_share(limit: float) -> LargeShare:
    words = "have an importance weight at algorithm.importance_cap"
    return LargeShare(limit, "capped_share", words, "capped_share", "alarms.capped_share")


def clipped_share(limit: float) -> LargeShare:
    words = "have no gradient, since the surrogate clips them"
    return LargeShare(limit, "clipped_share", words, "clipped_share", "alarms.clipped_share")


def trust_region_share(limit: float) -> LargeShare:
    words = "have no policy loss, since they are outside algorithm.trust_region"
    return LargeShare(limit, "trust_region_share", words, "trust_region_share", "alarms.trust_region_share")
