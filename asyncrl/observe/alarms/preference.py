"""Preference optimization makes the responses that it prefers less likely."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding


@dataclass(frozen=True, slots=True)
class LikelihoodDisplacement:
    """Chosen responses are less likely than under the reference, and rejected ones even less: pairs are told
    apart while probability goes to responses that neither side has (Razin et al. 2024, arXiv 2410.08847)."""

    limit: float
    name: str = "likelihood_displacement"
    key: str = "alarms.chosen_reward_loss"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        chosen, rejected = history.now("dpo_chosen_reward"), history.now("dpo_rejected_reward")
        if chosen is None or rejected is None or chosen >= -self.limit or rejected >= 0:
            return None
        text = (
            f"both sides of the pairs became less likely than under the reference: the reward of chosen "
            f"responses is {chosen:.2g}, that of rejected ones {rejected:.2g}"
        )
        return Finding(-chosen, self.limit, text)
