"""Lengths of simulated responses: a stated distribution."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLE = 20_000
"""Lengths drawn of a distribution, once."""


@dataclass(frozen=True)
class Lengths:
    """Response tokens of groups in the order of their admission; after the last one comes the first again."""

    groups: Sequence[Sequence[int]]
    prompt_tokens: float
    """Mean."""

    def of_group(self, number: int, count: int) -> list[int]:
        """Tokens of the `count` responses of the group that is admitted as `number`, from 0."""
        group = self.groups[number % len(self.groups)]
        return [group[index % len(group)] for index in range(count)]

    def mean(self) -> float:
        """Tokens of a response."""
        lengths = [tokens for group in self.groups for tokens in group]
        return sum(lengths) / len(lengths)

    @functools.cached_property
    def tokens_held(self) -> float:
        """Tokens of a running request at a random moment: its prompt and what it has generated. A long one
        runs for longer, so that half of E[length^2] / E[length] is generated."""
        lengths = [tokens for group in self.groups for tokens in group]
        return self.prompt_tokens + sum(n * n for n in lengths) / (2 * max(1, sum(lengths)))


def log_normal_lengths(
    mean_tokens: float, spread: float, *, limit: int, samples_per_group: int, prompt_tokens: float
) -> Lengths:
    """Responses with a long tail: the logarithm of the length is normal, with the standard deviation `spread`
    (0: all alike); cut at `limit`. `mean_tokens` is the mean before the cut."""
    chance, center = random.Random(0), math.log(mean_tokens) - spread**2 / 2

    def one() -> int:
        return min(limit, max(1, round(math.exp(chance.gauss(center, spread)))))

    num_groups = max(1, SAMPLE // samples_per_group)
    return Lengths([[one() for _ in range(samples_per_group)] for _ in range(num_groups)], prompt_tokens)
