"""Chances over random subsets of a task's samples: its pass@k, maj@k and best@k, each for all k at once.

Each is the exact expectation over all subsets of k samples, drawn without replacement, so it is unbiased, and
no subset is drawn. Only a vote over more than `EXACT_SAMPLES` samples is estimated, from `NUM_ORDERS` random
orders of a fixed seed. All terms of each sum have one sign: nothing cancels.
"""

import functools
import math
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EXACT_SAMPLES = 256
"""Samples of a task up to which a vote is computed exactly."""
NUM_ORDERS = 1000
"""Random orders of the samples of a task with more, of which each gives one subset per k."""

Floats = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=4096)
def chances_of_a_correct_draw(num_correct: int, num_samples: int) -> tuple[float, ...]:
    """pass@k of one task for k = 1 to `num_samples`: 1 - C(n-c, k) / C(n, k).

    By the product of Chen et al. 2021 (arxiv.org/abs/2107.03374, figure 3), whose factors lie in [0, 1].
    """
    num_wrong, chance_of_none, found = num_samples - num_correct, 1.0, []
    for drawn in range(num_samples):
        chance_of_none *= max(0, num_wrong - drawn) / (num_samples - drawn)
        found.append(1.0 - chance_of_none)
    return tuple(found)


def best_of_draws(scores: Sequence[float]) -> tuple[float, ...]:
    """best@k of one task for k = 1 to the number of its samples: the mean of the highest score of k samples.

    The i-th lowest of n scores is the highest of C(i-1, k-1) of the C(n, k) subsets.
    """
    ordered, num = sorted(scores, reverse=True), len(scores)
    found = []
    for k in range(1, num + 1):
        # The highest score of all is in k of n subsets; each lower one by the ratio of two binomials.
        chance, parts = k / num, []
        for place, score in enumerate(ordered[: num - k + 1]):
            parts.append(chance * score)
            left = num - place - 1
            chance *= (left - k + 1) / left if left else 0.0
        found.append(math.fsum(parts))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def chances_of_election(num_votes: int, others: tuple[int, ...], num_without: int) -> tuple[float, ...]:
    """The chance that k samples of one task elect a certain answer, for k = 1 to the number of its samples.

    `num_votes` samples have that answer, `others` holds how many have each other one, and `num_without` have
    none and do not vote. The answer with most votes is elected; among several, each with the same chance;
    without a vote none is. maj@k (self-consistency, Wang et al. 2023, arxiv.org/abs/2203.11171) is the sum of
    this over the correct answers.
    """
    count = _counted if num_votes + sum(others) + num_without <= EXACT_SAMPLES else _sampled
    # Rounding errors would tell certainty from 1.
    return tuple(round(chance, 12) for chance in count(num_votes, others, num_without))


def _counted(num_votes: int, others: tuple[int, ...], num_without: int) -> list[float]:
    """Counts the subsets by the votes j of the answer: every other answer has j at most."""
    num = num_votes + sum(others) + num_without
    found = np.zeros(num + 1)
    for votes in range(1, num_votes + 1):
        rivals = [size for size in others if size >= votes]
        free = num_without + sum(size for size in others if size < votes)
        of_others = _subsets(rivals, votes, free)
        found[votes : votes + len(of_others)] += math.comb(num_votes, votes) * of_others
    return [float(found[k]) / math.comb(num, k) for k in range(1, num + 1)]


def _subsets(rivals: Sequence[int], votes: int, free: int) -> Floats:
    """[s] how many subsets of s of the other samples leave each rival `votes` at most; one with t rivals of
    just as many counts as 1 / (1 + t). `free` samples may be in any number."""
    # [t, s]
    counts = np.zeros((len(rivals) + 1, votes * len(rivals) + 1))
    counts[0, 0] = 1.0
    for size in rivals:
        added = np.zeros_like(counts)
        for drawn in range(votes):
            added[:, drawn:] += math.comb(size, drawn) * counts[:, : counts.shape[1] - drawn]
        added[1:, votes:] += math.comb(size, votes) * counts[:-1, : counts.shape[1] - votes]
        counts = added
    shared = 1.0 / np.arange(1, len(rivals) + 2)
    of_free = np.array([float(math.comb(free, drawn)) for drawn in range(free + 1)])
    return np.convolve(shared @ counts, of_free)


def _sampled(num_votes: int, others: tuple[int, ...], num_without: int) -> list[float]:
    """The mean over random orders: the first k samples of an order are a random subset."""
    num = num_votes + sum(others) + num_without
    # 0 is the answer, -1 none.
    answers = [0] * num_votes + [-1] * num_without
    for answer, size in enumerate(others, start=1):
        answers += [answer] * size
    source, totals = random.Random(0), [0.0] * num
    for _ in range(NUM_ORDERS):
        source.shuffle(answers)
        votes, num_with, most = [0] * (len(others) + 1), [0] * (num + 1), 0
        for place, answer in enumerate(answers):
            if answer >= 0:
                votes[answer] += 1
                # Answers that have had as many votes.
                num_with[votes[answer]] += 1
                most = max(most, votes[answer])
            if most and votes[0] == most:
                totals[place] += 1 / num_with[most]
    return [total / NUM_ORDERS for total in totals]
