"""The policy has become too sure: entropy collapse, one answer to everything.

Neither is an alarm where nearly every response is correct: a task that is solved has one right answer.
"""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.words import as_percent


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


SOLVED_SHARE = 0.9
ENTROPY_SHARE = 0.2
"""Share of the first steps' entropy: some models begin with little."""
ANSWER_RISE = 0.2
"""Rise over the first steps' share: a task with few possible answers begins with a large one."""


@dataclass(frozen=True, slots=True)
class EntropyCollapse:
    """Entropy near zero before the tasks are solved (Cui et al. 2025, arxiv.org/abs/2505.22617)."""

    limit: float
    name: str = "entropy_collapse"
    key: str = "alarms.entropy_nats"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("entropy"), history.first("entropy")
        if now is None or first is None or is_solved(history):
            return None
        if now >= self.limit or now >= ENTROPY_SHARE * first:
            return None
        text = f"entropy fell from {first:.3g} nats in the first steps to {now:.2g} nats"
        return Finding(now, self.limit, text)


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """Most responses give the same answer, whatever is asked (`verifiers.monitor`)."""

    limit: float
    name: str = "one_answer"
    key: str = "alarms.answer_share"
    view: str = "answers"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("most_common_answer_share"), history.first("most_common_answer_share")
        if now is None or first is None or is_solved(history):
            return None
        if now <= self.limit or now < first + ANSWER_RISE:
            return None
        text = (
            f"{as_percent(now)} of the responses give one answer, up from {as_percent(first)} in the first "
            f"steps"
        )
        return Finding(now, self.limit, text)


def is_solved(history: History, *, share: float = SOLVED_SHARE) -> bool:
    """Whether more than `share` of the training responses, or of the held-out answers, are correct."""
    correct = history.now("correct_mean")
    if history.evaluations and history.evaluations[-1].accuracy > share:
        return True
    return correct is not None and correct > share
