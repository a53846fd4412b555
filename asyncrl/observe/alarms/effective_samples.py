"""Few sequences carry the gradient: the warning that comes before an asynchronous run collapses."""

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
