"""Advantages of the parts of a trajectory: of turns that have rewards of their own, and of branches that are
judged each.

Plain floats, as in `advantages`. Below, r_i is the reward of trajectory i's outcome, c_{i,l} that of its turn
l (its credits in turn l), n the number of trajectories of the group. A trajectory counts once in its group,
whatever its branches: its reward R_i is the mean of theirs, r_{i,b}, and all that an advantage takes from the
group comes from the R. With roles (`agent.roles`) each role has a group of its own.

Why the baseline of a turn is a mean over all n trajectories: the mean over those that reached turn l, summed
over the turns that a trajectory itself has from k on, has as many terms as the policy chose to take turns. It
depends on that choice, and so pays for stopping (or for going on, where turns cost) by what turns earn in the
mean: the bias that verl issue 7244 describes. Here every trajectory counts at every turn; one that has ended
has its outcome and no more credits, which is the truth. The own return in the mean shrinks all turns alike by
(n - 1) / n, as in dr_grpo (in rloo: not at all), and the expected gradient points where that of the reward
does (tests/algorithms/test_turns.py counts it out). Left are the biases of the advantage itself: of grpo's
std, and of what reinforce_pp whitens.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from asyncrl.algorithms.advantages import (
    STD_EPSILON,
    Advantage,
    GroupRewards,
    dr_grpo,
    group_advantages,
    with_equal_rewards,
)
from asyncrl.recipe.sections.algorithm import Algorithm
from asyncrl.records import Credits, TurnAdvantages
from verifiers.verdict import weighted_sum


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """Rewards of one trajectory."""

    outcome: float
    turns: Sequence[float]
    """Credits of each turn."""

    def to_go(self) -> list[float]:
        """G_k of each turn, and at last of one after it: the outcome, and the credits of turns from k on."""
        sums = accumulate(
            reversed(self.turns), lambda x, y: weighted_sum([(1.0, x), (1.0, y)]), initial=self.outcome
        )
        return list(sums)[::-1]


def turns(
    group: Sequence[TurnRewards],
    lengths: Sequence[int],
    advantage: Advantage,
    algorithm: Algorithm,
    *,
    greedy: TurnRewards | None = None,
) -> list[list[float]]:
    """A_{i,k} = advantage of G_{i,k} among G_{j,k} = r_j + sum_{l>=k} c_{j,l}; grpo: one std, max_k std G_k

    Source: returns-to-go of turns, in the group as in MT-GRPO (2025, arXiv 2505.11821): where the first of
    two turns is rewarded, its advantage is that of outcome + turn, the second's that of the outcome. The
    baseline is over the whole group, against the bias of verl issue 7244.
    Use: environments or judges that reward turns: a turn answers for what came after it, not before.
    Fails: a turn is compared with what others earned from their turn of its number on, whatever state they
    are in (GiGPO, arXiv 2505.10978, compares equal states). Only gae tells spans within one turn apart.
    """
    size = max((len(rewards.turns) for rewards in group), default=0) or 1
    returns = [_padded(rewards.to_go(), size) for rewards in group]
    baseline = None if greedy is None else _padded(greedy.to_go(), size)
    columns = [
        GroupRewards(
            [each[turn] for each in returns],
            lengths,
            None if baseline is None else baseline[turn],
            min_size=algorithm.min_group_size(),
        )
        for turn in range(size)
    ]
    if algorithm.advantage.name == "grpo":
        found = _scaled_once(columns, algorithm)
    else:
        found = [group_advantages(column, advantage, algorithm) for column in columns]
    return [[column[i] for column in found[: len(rewards.turns) or 1]] for i, rewards in enumerate(group)]


def _padded(returns: list[float], size: int) -> list[float]:
    """`size` of them: after its end a trajectory has its outcome, and earns no more."""
    return (returns + returns[-1:] * size)[:size]


def _scaled_once(columns: Sequence[GroupRewards], algorithm: Algorithm) -> list[list[float]]:
    """grpo of each turn, with the largest std of all: one of each turn would weigh turns by how few credits
    follow them, and is rounding alone where only outcomes are left that are equal."""
    equal = [with_equal_rewards(column, algorithm) for column in columns]
    std = max(statistics.stdev(column.rewards) for column in equal)
    return [
        [x / (std + STD_EPSILON) for x in group_advantages(column, dr_grpo, algorithm)] for column in equal
    ]


def credits_by_turn(credits: Credits, lengths: Sequence[int]) -> list[float]:
    """The sum of the credits of each turn; `lengths` are the turns' numbers of sampled tokens."""
    found, first = [], 0
    for length in lengths:
        own = [(1.0, reward) for place, reward in credits if first <= place < first + length]
        found.append(weighted_sum(own))
        first += length
    return found


def as_runs(lengths: Sequence[int], advantages: Sequence[float]) -> TurnAdvantages:
    """Advantages of turns of these lengths as a trajectory holds them: none where all are equal."""
    if len(set(advantages)) <= 1:
        return []
    return list(zip(lengths, advantages, strict=True))


def mean_reward(rewards: Sequence[float]) -> float:
    """R_i = mean of r_{i,b}, correctly rounded: branches of equal rewards have that reward together."""
    return float(statistics.mean(rewards))


@dataclass(frozen=True, slots=True)
class LineReward:
    """Reward of a branch that was judged by itself, or of a whole trajectory."""

    role: str
    """Empty without roles."""
    reward: float
    num_tokens: int
    """Sampled ones."""


def line_advantages(
    group: Sequence[Sequence[LineReward]],
    advantage: Advantage,
    algorithm: Algorithm,
    *,
    greedy_reward: float | None = None,
) -> list[list[float]]:
    """A_{i,b} of each branch b of each trajectory i, within the group of the branch's role

    The group of a role is the trajectories in which it spoke; R_i is the mean over its branches there. Where
    these are too few for a baseline, the advantage is 0. Raises InputError as `group_advantages`.
    """
    found = [[0.0] * len(lines) for lines in group]
    for role in {line.role for lines in group for line in lines}:
        own = {i: [each for each in lines if each.role == role] for i, lines in enumerate(group)}
        spoke = {i: lines for i, lines in own.items() if lines}
        if len(spoke) < algorithm.min_group_size():
            continue
        rewards = GroupRewards(
            [mean_reward([line.reward for line in lines]) for lines in spoke.values()],
            [sum(line.num_tokens for line in lines) for lines in spoke.values()],
            greedy_reward,
            min_size=algorithm.min_group_size(),
        )
        for place, (i, lines) in enumerate(spoke.items()):
            values = [line.reward for line in lines]
            of_role = iter(branch_advantages(rewards, place, values, advantage, algorithm))
            for number, line in enumerate(group[i]):
                if line.role == role:
                    found[i][number] = next(of_role)
    return found


def branch_advantages(
    group: GroupRewards, place: int, rewards: Sequence[float], advantage: Advantage, algorithm: Algorithm
) -> list[float]:
    """A_{i,b} = advantage of R_1, ..., r_{i,b} in the place of R_i, ..., R_n, for trajectory i

    With equal rewards of branches it is the trajectory's own, to the last digit. `dr_grpo` gives (n - 1) / n
    (r_{i,b} - mean of the other R), `rloo` r_{i,b} - mean of the other R. It is defined for every advantage,
    those of recipes included, and where all R are equal it stays finite, unlike a scale of their std alone.
    Raises InputError as `group_advantages`.
    """
    found: dict[float, float] = {}
    for reward in rewards:
        if reward not in found:
            replaced = list(group.rewards)
            replaced[place] = reward
            one = dataclasses.replace(group, rewards=replaced)
            found[reward] = group_advantages(one, advantage, algorithm)[place]
    return [found[reward] for reward in rewards]
