"""Lengths of simulated responses: those of groups that a run has generated, or a stated distribution."""

import bisect
import functools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Draw = Callable[[int, int], list[int]]
"""(version that admits a group, number of its responses) -> tokens of each."""


class Lengths(Protocol):
    """Where the response lengths of a group come from."""

    @property
    def prompt_tokens(self) -> float:
        """Mean."""

    def begin(self, chance: random.Random) -> Draw:
        """The draw of one simulated run."""

    def mean(self) -> float:
        """Response tokens."""

    def longest(self) -> int:
        """Response tokens."""

    def tokens_held(self) -> float:
        """Tokens of a running request at a random moment: its prompt and what it has generated."""


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Responses with a long tail: the logarithm of the length is normal; cut at `limit`."""

    mean_tokens: float
    """Mean before the cut."""
    spread: float
    """Standard deviation of the natural logarithm; 0: all alike."""
    limit: int
    prompt_tokens: float

    def begin(self, chance: random.Random) -> Draw:
        center = math.log(self.mean_tokens) - self.spread**2 / 2

        def one() -> int:
            return min(self.limit, max(1, round(math.exp(chance.gauss(center, self.spread)))))

        return lambda version, count: [one() for _ in range(count)]

    def mean(self) -> float:
        return statistics.fmean(_sample(self))

    def longest(self) -> int:
        return self.limit if self.spread else min(self.limit, round(self.mean_tokens))

    def tokens_held(self) -> float:
        return held_by_running(_sample(self), self.prompt_tokens)


# Asked for by each cost of each split that a plan tries.
@functools.lru_cache(maxsize=8)
def _sample(lengths: LogNormalLengths) -> list[int]:
    return lengths.begin(random.Random(0))(0, 20_000)


@dataclass(frozen=True, slots=True)
class MeasuredLengths:
    """Response lengths of a run, drawn group by group from the ones admitted at the same version.

    Each of them comes once before any comes again. Drawn with replacement, a third of the batches would miss
    their longest response, which is what a step waits for.
    """

    by_version: Mapping[int, Sequence[Sequence[int]]]
    """Admitting version -> groups -> response tokens."""
    prompt_tokens: float

    def begin(self, chance: random.Random) -> Draw:
        versions = sorted(self.by_version)
        left: dict[int, list[Sequence[int]]] = {}

        def draw(version: int, count: int) -> list[int]:
            # The last version at or before it that admitted groups; the first one, where none did.
            known = versions[max(0, bisect.bisect_right(versions, version) - 1)]
            if not left.get(known):
                left[known] = chance.sample(self.by_version[known], len(self.by_version[known]))
            group = left[known].pop()
            return list(group) if len(group) == count else chance.choices(group, k=count)

        return draw

    def mean(self) -> float:
        return statistics.fmean(self._all())

    def longest(self) -> int:
        return max(self._all())

    def tokens_held(self) -> float:
        return held_by_running(self._all(), self.prompt_tokens)

    def _all(self) -> list[int]:
        return [tokens for groups in self.by_version.values() for group in groups for tokens in group]


def held_by_running(lengths: Sequence[int], prompt_tokens: float) -> float:
    """Tokens that a request holds, averaged over running requests: a long one runs for longer, so that half
    of E[length^2] / E[length] is generated."""
    return prompt_tokens + sum(n * n for n in lengths) / (2 * max(1, sum(lengths)))
