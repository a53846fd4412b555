"""Advantages: what each trajectory's reward is worth against a baseline.

Plain floats, so that the controller, which calls these, never imports torch. A term takes one group (at least
two trajectories; faults have left before) and gives one advantage per trajectory, in the same order.
`batch_advantages.finish_batch` does what needs the whole batch. Below, r are a group's rewards, n their
number.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm, AsymRe, Gdpo, OwnFunction, PassAtK, WReinforce, chosen

LARGEST = 3.4028234663852886e38
"""Largest float32, the type in which the trainer computes."""
STD_EPSILON = 1e-6
"""Keeps grpo finite where a group's rewards are all equal; its advantages are then zero."""


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """Inputs of an advantage."""

    rewards: Sequence[float]
    lengths: Sequence[int]
    """Response tokens."""
    greedy_reward: float | None = None
    """Reward of the task's greedy trajectory, where the advantage asks for one (`Algorithm.needs_greedy`)."""
    parts: Sequence[Mapping[str, float]] = ()
    """Named scores of each trajectory's verdict (`Verdict.scores`), credits among them; empty where none has
    any."""
    min_size: int = 2
    """`Algorithm.min_group_size`."""

    def __post_init__(self) -> None:
        if len(self.rewards) < self.min_size:
            raise ValueError(
                f"A group has {len(self.rewards)} reward(s); a baseline needs at least {self.min_size}."
            )


Advantage = Callable[[GroupRewards, Algorithm], list[float]]


def grpo(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """(r - mean r) / (std r + 1e-6), the sample std (n - 1) as in TRL and verl

    Source: GRPO, Shao et al. 2024 (arXiv 2402.03300, section 4.1.2).
    Use: the default: the same scale for every task.
    Fails: the std favors tasks that are almost always right or wrong, where one odd answer counts most.
    """
    std = statistics.stdev(group.rewards)
    return [x / (std + STD_EPSILON) for x in dr_grpo(group, algorithm)]


def dr_grpo(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """r - mean r

    Source: Dr.GRPO, Liu et al. 2025 (arXiv 2503.20783).
    Use: without the std that favors very easy and very hard tasks.
    Fails: the own reward is in the baseline, which shrinks every advantage by (n - 1) / n; see rloo.
    """
    # Correctly rounded: equal rewards have advantages of exactly zero.
    mean = statistics.mean(group.rewards)
    return [reward - mean for reward in group.rewards]


def rloo(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """r_i - mean of the others' r = n / (n - 1) (r_i - mean r); r less its KL where KL is in the reward

    Source: Kool et al. 2019; Ahmadian et al. 2024 (arXiv 2402.14740).
    Use: small groups, where an unbiased scale matters.
    Fails: like dr_grpo, tasks of another difficulty teach with another strength.
    """
    n = len(group.rewards)
    return [n / (n - 1) * centered for centered in dr_grpo(group, algorithm)]


def remax(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """r - reward of the greedy answer

    Source: ReMax, Li et al. 2023 (arXiv 2310.10505).
    Use: few samples per task; the greedy answer is one generation more per group and is not trained on.
    Fails: a greedy answer that is not typical of the policy is a poor baseline: all samples get one sign.
    """
    assert group.greedy_reward is not None, "remax needs the reward of a greedy trajectory"
    return [reward - group.greedy_reward for reward in group.rewards]


def reinforce_pp(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """(r - mean) / std, mean and std over all tokens of the batch; r less the KL from the token on, where KL
    is in the reward

    Source: REINFORCE++, Hu et al. 2025 (arXiv 2501.03262); the batch is whitened in `finish_batch`, by the
    trainer where KL is in the reward.
    Use: no group baseline: robust to tasks whose answers are all equal, which here keep a signal.
    Fails: easy tasks teach "more of this" and hard ones "less", whatever the answer.
    """
    return list(group.rewards)


def reinforce_pp_baseline(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """(r - mean r of the group) / std over all tokens of the batch; KL in the reward is taken off between

    Source: REINFORCE++-baseline, Hu et al. 2025 (arXiv 2501.03262); the batch is whitened in `finish_batch`,
    by the trainer where KL is in the reward.
    Use: a group baseline with one scale for all tasks, unlike grpo's.
    Fails: whitening subtracts the batch mean too, so that groups without a signal get a small one.
    """
    return dr_grpo(group, algorithm)


def gdpo(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """sum_k w_k (r_k - mean r_k) / (std r_k + 1e-6) over the named scores k of verdicts; whitened over the
    tokens of the batch

    Source: GDPO 2026 (arXiv 2601.05242); TRL's normalize_then_sum, verl's gdpo. w_k is part_weights, 1 if not
    stated. A verdict that lacks a score which others of its group have counts as 0 there; without any, the
    reward is the only one. The batch is whitened in `finish_batch`.
    Use: several rewards: sums that are equal (1 + 0, 0 + 1) stay apart, and no reward of a large scale or of
    much variance hides the others.
    Fails: a reward that hardly differs in a group counts as much as one that does, noise included.
    """
    parts = group.parts or [{"reward": reward} for reward in group.rewards]
    totals, weights = [0.0] * len(parts), chosen(algorithm.advantage, Gdpo).part_weights
    for name in sorted({name for own in parts for name in own}):
        values = [own.get(name, 0.0) for own in parts]
        if not is_flat(values, algorithm):
            mean, std = statistics.mean(values), statistics.stdev(values)
            scale = weights.get(name, 1.0) / (std + STD_EPSILON)
            totals = [total + scale * (value - mean) for total, value in zip(totals, values, strict=True)]
    return totals


def opo(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """r - sum(length r) / sum(length)

    Source: OPO, Hao et al. 2025 (arXiv 2505.23585): the baseline of least variance when the squared gradient
    of a response grows with its length.
    Use: on-policy runs with responses of very different lengths.
    Fails: a single very long answer sets the baseline for its group.
    """
    total = sum(group.lengths)
    weights = [length / total if total else 1 / len(group.lengths) for length in group.lengths]
    baseline = math.fsum(w * r for w, r in zip(weights, group.rewards, strict=True))
    is_flat = len(set(group.rewards)) == 1
    return [0.0 if is_flat else reward - baseline for reward in group.rewards]


def pass_at_k(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """n s_i, s_i = mean over the k-subsets of the group of (max r - max r without i), 0 where i is not in it

    Source: PKPO, Walder and Karkhanis 2025 (arXiv 2505.15201), the leave-one-out-minus-one estimator, times n
    because losses here are means over trajectories. With k of the whole group the best gets
    n (max r - second r), the others 0: n times verl's grpo_passk (arXiv 2503.19595).
    Use: tasks that are solved by trying: rewards the best of k answers, which keeps answers diverse.
    Fails: no answer is ever punished, and one that others got right too earns nearly nothing: slower pass@1.
    """
    n, k = len(group.rewards), min(chosen(algorithm.advantage, PassAtK).k, len(group.rewards))
    ordered = sorted(range(n), key=lambda i: group.rewards[i])
    gains = [0.0] * n
    for j, i in enumerate(ordered):
        # The subsets in which i is best and ordered[m] second best: k - 2 more from the m below.
        gaps = (math.comb(m, k - 2) * (group.rewards[i] - group.rewards[ordered[m]]) for m in range(j))
        gains[i] = n * math.fsum(gaps) / math.comb(n, k)
    return gains


def pass_at_k_training(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """(mean of max r over the k-subsets with the response - mean M over all) / (std of M + 1e-6)

    Source: pass@k training, Chen et al. 2025 (arXiv 2508.10751), its analytic advantages, here for any
    rewards. With scores 0 and 1 and `neg` wrong ones M is R = 1 - C(neg, k) / C(n, k), the std
    sqrt(R (1 - R)); right: 1 - R over it, wrong: 1 - R - C(neg - 1, k - 1) / C(n - 1, k - 1).
    Use: tasks that are solved by trying, with one scale for all, and wrong answers punished, unlike under
    pass_at_k (PKPO).
    Fails: once n - k + 1 answers are right, every subset has one, and the group teaches nothing.
    """
    n, k = len(group.rewards), min(chosen(algorithm.advantage, PassAtK).k, len(group.rewards))
    ordered = sorted(range(n), key=lambda i: group.rewards[i])
    ranked = [group.rewards[i] for i in ordered]
    if ranked[k - 1] == ranked[-1]:
        # Every subset has the same best answer, or there is one subset alone.
        return [0.0] * n
    shares = [math.comb(j, k - 1) / math.comb(n, k) for j in range(n)]
    mean = math.fsum(share * best for share, best in zip(shares, ranked, strict=True))
    std = math.sqrt(math.fsum(share * (best - mean) ** 2 for share, best in zip(shares, ranked, strict=True)))
    found = [0.0] * n
    for place, i in enumerate(ordered):
        # Subsets with i: i is best of k - 1 below it, or another one is, of i and k - 2 others below it.
        bests = [math.comb(place, k - 1) * ranked[place]]
        bests += [math.comb(j - 1, k - 2) * ranked[j] for j in range(place + 1, n)]
        found[i] = (math.fsum(bests) / math.comb(n - 1, k - 1) - mean) / (std + STD_EPSILON)
    return found


def max_rl(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """(r - mean r) / mean r; 0 where the mean is not above 0

    Source: MaxRL 2026 (arXiv 2602.02710); prime-rl's max_rl. With scores 0 and 1 the expected gradient is
    that of sum_k pass@k / k, k up to n - 1: the likelihood of a right answer, cut after n - 1 terms.
    Use: hard tasks, in large groups: one right answer of n has n - 1, one of a nearly solved task little.
    Fails: made for scores of at least 0; a lone lucky or wrongly accepted answer has the largest step of all.
    """
    mean = statistics.mean(group.rewards)
    return [x / mean if mean > 0 else 0.0 for x in dr_grpo(group, algorithm)]


def batch_mean(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """r - mean r of the batch's responses (taken off by `batch_advantages`)

    Source: FlashREINFORCE, NVIDIA 2026 (github.com/yifanzhang-pro/FlashREINFORCE; OpenRLHF's pull request
    1339).
    Use: one response per prompt: every token of the budget goes to another prompt. With the rejection
    sequence_kl and reduction sequence_mean, as its preset.
    Fails: a hard prompt's right answer and an easy one's weigh alike: noisier than a baseline per prompt.
    """
    return list(group.rewards)


def w_reinforce(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """positive_scale r - (1 - r): positive_scale for a right answer, -1 for a wrong one

    Source: W-REINFORCE, Zhu et al. 2025 (arXiv 2506.01347), positive_scale 0.1; 0 is its NSR, which learns
    from wrong answers alone.
    Use: tasks where a sharper policy loses its other ways to be right: wrong ones move probability to all
    the rest, as the policy spreads it already. No baseline: groups of wrong answers alone teach too.
    Fails: a policy that is mostly wrong is pushed away from all it does; made for scores of 0 and 1.
    """
    scale = chosen(algorithm.advantage, WReinforce).positive_scale
    return [scale * reward - (1 - reward) for reward in group.rewards]


def asym_re(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """r - (mean r + offset), the offset below 0: each answer is pushed up by it

    Source: AsymRE, Arnal et al. 2025 (arXiv 2506.20520), offset -0.1: off-policy, right answers teach more
    safely than wrong ones; at an offset of 0 their runs collapsed.
    Use: stale data without importance weights, such as repeated groups.
    Fails: groups whose answers are all equal are imitated, wrong ones too; entropy falls.
    """
    return [x - chosen(algorithm.advantage, AsymRe).offset for x in dr_grpo(group, algorithm)]


def gae(group: GroupRewards, algorithm: Algorithm) -> list[float]:
    """A_t = sum_l (gamma lambda)^l (r_{t+l} + gamma V_{t+l+1} - V_{t+l}), r_t at credits and end, V_end = 0

    Source: PPO with a critic, Schulman et al. 2017 (arXiv 1707.06347); its advantages are of Schulman et al.
    2015 (arXiv 1506.02438). Here a trajectory gets its outcome's reward, the trainer's critic does the rest:
    credits, the rewards of turns and spans, are r where they lie, so that the return is the sum of all.
    Use: one sample per task, and long responses: a token is judged by what was still to be expected there.
    Fails: costs a second model, and a critic that lags behind misleads: warm it up, keep gae_lambda near 1.
    Importance weights correct the policy's loss only; values are of the policies that sampled.
    """
    return list(group.rewards)


ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "remax": remax,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gdpo": gdpo,
    "opo": opo,
    "pass_at_k": pass_at_k,
    "pass_at_k_training": pass_at_k_training,
    "max_rl": max_rl,
    "batch_mean": batch_mean,
    "w_reinforce": w_reinforce,
    "asym_re": asym_re,
    "gae": gae,
}


def find_advantage(algorithm: Algorithm) -> Advantage:
    """The recipe's advantage, one of its own checked on small groups. Raises InputError."""
    term = algorithm.advantage
    if not isinstance(term, OwnFunction):
        return ADVANTAGES[term.name]
    advantage: Advantage = term.load()
    for group in (GroupRewards([0.0, 1.0, 0.5], [3, 1, 2]), GroupRewards([1.0, 1.0], [1, 1])):
        group_advantages(group, advantage, algorithm)
    return advantage


def group_advantages(group: GroupRewards, advantage: Advantage, algorithm: Algorithm) -> list[float]:
    """One finite float32 number per trajectory: the only way in which an advantage is called.

    Rewards closer together than `algorithm.least_reward_spread` are equal to the advantage. Raises
    InputError, with the key, the call and the value, for an advantage that raises or gives anything else.
    """
    group = with_equal_rewards(group, algorithm)
    where = (
        f"algorithm.advantage {algorithm.advantage.name}, called with "
        f"GroupRewards(rewards={list(group.rewards)}, lengths={list(group.lengths)}) and options,"
    )
    try:
        found = advantage(group, algorithm)
    except Exception as error:  # the boundary: whatever an advantage of the recipe's own raises
        raise InputError(f"{where} raised {type(error).__name__}: {error}.") from error
    count = len(group.rewards)
    if not isinstance(found, list) or len(found) != count:
        raise InputError(f"{where} gave {found!r}; expected a list of {count} floats.")
    for place, value in enumerate(found):
        # Written so that NaN is refused, too.
        if not isinstance(value, Real) or not abs(value) <= LARGEST:
            raise InputError(
                f"{where} gave {found!r}, {value!r} at place {place}; expected finite floats of at most "
                f"{LARGEST:.3g} (float32)."
            )
    return [float(value) for value in found]


def has_signal(group: GroupRewards, advantage: Advantage, algorithm: Algorithm) -> bool:
    """Whether a group with these rewards has a gradient: the advantage decides, not the rewards' variance.

    Under an advantage whose zero is only known in the batch, or to the critic, every group has.
    """
    return algorithm.always_teaches() or any(group_advantages(group, advantage, algorithm))


def is_flat(values: Iterable[float], algorithm: Algorithm) -> bool:
    """Whether `values` are closer together than `algorithm.least_reward_spread` of the largest of them, or
    of 1, the scale of scores."""
    lowest, highest = min(values := list(values)), max(values)
    scale = max(1.0, abs(lowest), abs(highest))
    return highest - lowest < algorithm.least_reward_spread * scale


def with_equal_rewards(group: GroupRewards, algorithm: Algorithm) -> GroupRewards:
    """The group with one reward in the place of all, where they are as good as equal; a group whose rewards
    only mean something in the batch, or to the critic, as it is."""
    known = [*group.rewards, *([] if group.greedy_reward is None else [group.greedy_reward])]
    if algorithm.always_teaches() or not is_flat(known, algorithm):
        return group
    greedy = None if group.greedy_reward is None else known[0]
    return dataclasses.replace(group, rewards=[known[0]] * len(group.rewards), greedy_reward=greedy)
