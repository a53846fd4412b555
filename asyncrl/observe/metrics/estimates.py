"""Estimates from graded samples, with 95% intervals over tasks. Plain floats, no numpy.

Tasks are the unit of sampling: the samples of one task are correlated, so an interval over all samples as if
they were independent would be too narrow (Miller 2024, arxiv.org/abs/2411.00640). All intervals are Wilson
score intervals (Wilson 1927), which stay inside [0, 1] and keep a width at 0 and 1, where mean +- 1.96
standard errors collapses to a point. `paired_difference` compares two models on the same tasks: every
command that calls a difference clear asks it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054
"""Two-sided 95% quantile of the standard normal distribution."""
CHANCE = 0.05
"""Largest chance that a difference is called clear although there is none."""
FEW_TASKS = 16
"""Differing tasks up to which signs are flipped in all ways, where their differences are not of one size."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its 95% interval; all in [0, 1]."""

    mean: float
    low: float
    high: float
    num_tasks: int


def accuracy(num_correct: int, num_tasks: int) -> Estimate:
    """Share of tasks answered correctly, one answer per task. Raises ValueError when there is no task."""
    if not 0 <= num_correct <= num_tasks or num_tasks == 0:
        raise ValueError(f"{num_correct} correct of {num_tasks} tasks is not a share.")
    return _wilson(num_correct / num_tasks, effective_tasks=num_tasks, num_tasks=num_tasks)


def avg_at_k(tasks: Sequence[Sequence[bool]]) -> Estimate:
    """avg@k: mean over tasks of the share of correct samples; it is pass@1 by the unbiased estimator."""
    return pass_at_k(tasks, 1)


def pass_at_k(tasks: Sequence[Sequence[bool]], k: int) -> Estimate:
    """pass@k: mean over tasks of the unbiased estimate (Chen et al. 2021, arxiv.org/abs/2107.03374).

    `tasks` holds, per task, which of its graded samples are correct; tasks with fewer than k are left out.
    The interval is that of `mean_of_draws`. Raises ValueError when no task is left.
    """
    usable = [samples for samples in tasks if len(samples) >= k]
    if not usable:
        raise ValueError(f"pass@{k} needs at least one task with {k} graded samples.")
    scores = [chance_of_a_correct_draw(sum(samples), len(samples), k=k) for samples in usable]
    return mean_of_draws(scores, [len(samples) for samples in usable], k)


def mean_of_draws(scores: Sequence[float], num_samples: Sequence[int], k: int) -> Estimate:
    """Mean over tasks of scores in [0, 1], each the expectation over draws of k of the task's `num_samples`.

    The interval is Wilson's with the effective number of tasks p(1 - p) / (variance of the mean), as complex
    surveys use it (Franco, Little, Louis and Slud 2019, J. Survey Statistics and Methodology 7(3)), kept
    between the number of tasks and the number of disjoint sets of k samples. There is at least one task.
    """
    num_tasks = len(scores)
    mean = min(1.0, math.fsum(scores) / num_tasks)
    most = math.fsum(num / k for num in num_samples)
    squares = math.fsum((score - mean) ** 2 for score in scores)
    if squares == 0.0:
        # No spread was seen: at 0 or 1 that is no evidence of precision, in between all samples count.
        effective = float(num_tasks) if mean in (0.0, 1.0) else most
    else:
        variance_of_mean = squares / (num_tasks - 1) / num_tasks
        effective = min(max(mean * (1 - mean) / variance_of_mean, num_tasks), most)
    return _wilson(mean, effective_tasks=effective, num_tasks=num_tasks)


def chance_of_a_correct_draw(num_correct: int, num_samples: int, *, k: int) -> float:
    """Chance that k samples drawn without replacement hold a correct one: 1 - C(n-c, k) / C(n, k)."""
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def share_in_clusters(clusters: Sequence[tuple[int, int]]) -> Estimate:
    """Share of hits among things that belong to tasks: (hits, things) of each task; all things weigh alike.

    The variance of this ratio of two sums is linearized over tasks (Cochran 1977, Sampling Techniques, 6.4).
    The interval is Wilson's with the effective number of things p(1 - p) / variance, kept between the number
    where the things of a task are all alike (Kish 1965: squared total / sum of squared sizes) and the total.
    Raises ValueError where there is no thing.
    """
    sizes = [size for _, size in clusters if size]
    total = sum(sizes)
    if not total:
        raise ValueError("a share needs at least one thing to count.")
    share = sum(hits for hits, _ in clusters) / total
    least = total**2 / sum(size**2 for size in sizes)
    squares = math.fsum((hits - share * size) ** 2 for hits, size in clusters if size)
    effective = least
    if squares > 0.0 and len(sizes) > 1:
        variance = len(sizes) / (len(sizes) - 1) * squares / total**2
        effective = min(max(share * (1 - share) / variance, least), total)
    return _wilson(share, effective_tasks=effective, num_tasks=len(sizes))


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference over tasks that two models both answered, with its 95% interval; all in [-1, 1]."""

    mean: float
    low: float
    high: float
    num_tasks: int

    def is_clear(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.low > 0 or self.high < 0


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Mean of second - first, where both hold one score in [0, 1] per task, of the same tasks in one order.

    What is hard for one model is mostly hard for the other: pairing takes that out (Miller 2024).
    The interval is normal over tasks, with two tasks more: half of one where only the first model was right,
    half of one where only the second was, and one without a difference (Agresti and Min 2005, Statistics in
    Medicine 24(5), "Wald + 2"). So it keeps a width where no two tasks differ. Few differing tasks are clear
    only where an exact test says so, too: `held_to_exact_test`.
    Raises ValueError when there is no task.
    """
    differences = [after - before for before, after in zip(first, second, strict=True)]
    if not differences:
        raise ValueError("a difference needs at least one task that both models answered.")
    mean = math.fsum(differences) / len(differences)
    centre, variance = with_two_tasks_more(differences)
    half = Z_95 * math.sqrt(variance)
    low, high = held_to_exact_test(min(mean, centre - half), max(mean, centre + half), differences)
    return Difference(mean, max(-1.0, low), min(1.0, high), len(differences))


def with_two_tasks_more(differences: Sequence[float]) -> tuple[float, float]:
    """Mean of differences per task and the variance of that mean, with the two tasks of Agresti and Min."""
    num_tasks = len(differences) + 2
    centre = math.fsum(differences) / num_tasks
    squares = (math.fsum(difference**2 for difference in differences) + 1) / num_tasks
    return centre, (squares - centre**2) / num_tasks


def held_to_exact_test(low: float, high: float, differences: Sequence[float]) -> tuple[float, float]:
    """The interval `low` to `high` of the mean of `differences`; where it leaves 0 outside although
    `sign_flip_margin` calls that mean chance, its nearer end moves as far from the mean as that."""
    # The test costs more than the interval: it is asked only where it may change something.
    if low <= 0 <= high:
        return low, high
    mean, margin = math.fsum(differences) / len(differences), sign_flip_margin(differences)
    if abs(mean) > margin:
        return low, high
    return (mean - margin, high) if mean > 0 else (low, mean + margin)


def sign_flip_margin(differences: Sequence[float]) -> float:
    """How far a mean of differences per task must be from 0 so that an exact test calls it clear: farther
    than this.

    Where neither side is better, each difference may as well have the other sign. Of all ways to choose the
    signs, more than 5% have a mean at least this far from 0 (the sign-flip test, Fisher 1935, The Design of
    Experiments, section 21). Where every differing task differs by the same, as right and wrong answers do,
    that is the exact test of McNemar: 5 to 0 is chance, 6 to 0 is not. 0 for more than `FEW_TASKS` differing
    tasks of several sizes, whose mean is near enough to a normal one.
    """
    sizes = [abs(difference) for difference in differences if difference]
    if not sizes:
        return 0.0
    if max(sizes) - min(sizes) < _ROUNDING:
        margin = max(sizes) * _sign_margin(len(sizes))
    elif len(sizes) <= FEW_TASKS:
        margin = _flip_margin(sizes)
    else:
        return 0.0
    total = abs(math.fsum(differences))
    # A sum in another order may end a rounding beyond itself.
    return (total if abs(total - margin) < _ROUNDING else margin) / len(differences)


_ROUNDING = 1e-9


def _sign_margin(num_tasks: int) -> int:
    """The largest gap between wins and losses that `num_tasks` fair coins reach in more than 5%."""
    whole, tail = 2**num_tasks, 0
    for losses in range(num_tasks // 2 + 1):
        tail += 2 * math.comb(num_tasks, losses)
        if tail > CHANCE * whole:
            return num_tasks - 2 * losses
    return 0


def _flip_margin(sizes: Sequence[float]) -> float:
    """`_sign_margin` for sums of `sizes` with any signs."""
    sums = Counter({0.0: 1})
    for size in sizes:
        flipped: Counter[float] = Counter()
        for (known, count), signed in itertools.product(sums.items(), (size, -size)):
            flipped[round(known + signed, 9)] += count
        sums = flipped
    far: Counter[float] = Counter()
    for known, count in sums.items():
        far[abs(known)] += count
    tail = 0
    for distance in sorted(far, reverse=True):
        tail += far[distance]
        if tail > CHANCE * 2 ** len(sizes):
            return distance
    return 0.0


def _wilson(share: float, *, effective_tasks: float, num_tasks: int) -> Estimate:
    spread = Z_95 * Z_95 / effective_tasks
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    # Rounding can leave 1e-17 on the wrong side of the share itself.
    low, high = min(share, centre - half), max(share, centre + half)
    return Estimate(share, max(0.0, low), min(1.0, high), num_tasks)
