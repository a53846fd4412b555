"""Advantages by their formulas, in plain floats: an oracle that shares no code with what it judges."""

import itertools
import math
import statistics
from collections.abc import Sequence

from asyncrl.recipe import Algorithm

EPSILON = 1e-6
WHITENED = ("reinforce_pp", "reinforce_pp_baseline", "gdpo")


def of_group(
    algorithm: Algorithm,
    rewards: Sequence[float],
    lengths: Sequence[int],
    greedy: float,
    parts: Sequence[dict[str, float]],
) -> list[float]:
    """One per response, before the batch changes any; under gae the reward."""
    n, mean = len(rewards), sum(rewards) / len(rewards)
    by_length = sum(a * b for a, b in zip(rewards, lengths, strict=True)) / sum(lengths)
    subsets = list(itertools.combinations(range(n), min(getattr(algorithm.advantage, "k", 2), n)))
    best = {subset: max(rewards[j] for j in subset) for subset in subsets}

    def one(i: int, r: float) -> float:
        match algorithm.advantage.name:
            case "grpo":
                return scores(rewards)[i]
            case "dr_grpo" | "reinforce_pp_baseline":
                return r - mean
            case "rloo":
                return r - (sum(rewards) - r) / (n - 1)
            case "remax":
                return r - greedy
            case "gdpo":
                return sum(scores([own[name] for own in parts])[i] for name in parts[0])
            case "opo":
                return r - by_length
            case "pass_at_k":
                gains = [max(best[s] - max(rewards[j] for j in s if j != i), 0.0) for s in subsets if i in s]
                return n * sum(gains) / len(subsets)
            case "pass_at_k_training":
                own = statistics.fmean(best[s] for s in subsets if i in s)
                spread = statistics.pstdev(best.values())
                return (own - statistics.fmean(best.values())) / (spread + EPSILON)
            case "max_rl":
                return r / mean - 1
            case "w_reinforce":
                return 0.1 * r - (1 - r)
            case "asym_re":
                return r - mean + 0.1
        assert algorithm.advantage.name in ("reinforce_pp", "batch_mean", "gae")
        return r

    return [one(i, r) for i, r in enumerate(rewards)]


def scores(values: Sequence[float]) -> list[float]:
    """Distance from the mean in standard deviations of a sample."""
    return [(value - statistics.fmean(values)) / (statistics.stdev(values) + EPSILON) for value in values]


def of_tokens(
    algorithm: Algorithm, found: Sequence[float], lengths: Sequence[int], values: Sequence[float]
) -> list[float]:
    """[T] from one per response: whitened over tokens, less the mean of all responses, or under gae with
    gamma 0.9 and lambda 0.8."""
    per_token = [x for x, length in zip(found, lengths, strict=True) for _ in range(length)]
    if algorithm.advantage.name == "batch_mean":
        return [x - statistics.fmean(found) for x in per_token]
    if algorithm.advantage.name in WHITENED:
        center, spread = statistics.fmean(per_token), statistics.pstdev(per_token)
        return [(x - center) / (spread + EPSILON) for x in per_token]
    if algorithm.advantage.name != "gae":
        return per_token
    wanted, first = list[float](), 0
    for reward, length in zip(found, lengths, strict=True):
        own, above, following = values[first : first + length], 0.0, 0.0
        backward = []
        for t in reversed(range(length)):
            error = (reward if t == length - 1 else 0.0) + 0.9 * following - own[t]
            above, following = error + 0.9 * 0.8 * above, own[t]
            backward.append(above)
        wanted += backward[::-1]
        first += length
    return wanted


def clip_reach(squares: Sequence[float], limit: float) -> float:
    """tau of second_moment_clip: the mean of min(square, tau^2) is `limit`; inf where no tau is needed."""
    ordered, n = sorted(squares), len(squares)
    if sum(ordered) <= limit * n:
        return math.inf
    for number in range(n):
        bound = (limit * n - sum(ordered[:number])) / (n - number)
        if bound <= ordered[number]:
            return math.sqrt(bound)
    raise AssertionError("unreachable: the mean is above the limit")
