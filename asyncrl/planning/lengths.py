"""Lengths of simulated responses: those of groups that a run has generated, or a stated distribution."""

import bisect
import functools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Lengths(Protocol):
    """Where the response lengths of a group come from."""

    @property
    def prompt_tokens(self) -> float:
        """Mean."""

    def draw(self, version: int, count: int, chance: random.Random) -> list[int]:
        """Tokens of `count` responses of one group, admitted at `version`."""

    def mean(self) -> float:
        """Response tokens."""

    def longest(self) -> int:
        """Response tokens."""

    def tokens_held(self) -> float:
        """Of a running request at a random moment: its prompt and what it has generated."""


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Responses with a long tail: the logarithm of the length is normal; cut at `limit`."""

    mean_tokens: float
    """Before the cut."""
    spread: float
    """Standard deviation of the natural logarithm; 0: all alike."""
    limit: int
    prompt_tokens: float

    def draw(self, version: int, count: int, chance: random.Random) -> list[int]:
        center = math.log(self.mean_tokens) - self.spread**2 / 2
        return [
            min(self.limit, max(1, round(math.exp(chance.gauss(center, self.spread))))) for _ in range(count)
        ]

    def mean(self) -> float:
        return statistics.fmean(_sample(self))

    def longest(self) -> int:
        return self.limit if self.spread else min(self.limit, round(self.mean_tokens))

    def tokens_held(self) -> float:
        return held_by_running(_sample(self), self.prompt_tokens)


# Asked for by each cost of each split that a plan tries.
@functools.lru_cache(maxsize=8)
def _sample(lengths: LogNormalLengths) -> list[int]:
    return lengths.draw(0, 20_000, random.Random(0))


@dataclass(frozen=True, slots=True)
class MeasuredLengths:
    """Those of a run, drawn group by group from the ones admitted at the same version."""

    by_version: Mapping[int, Sequence[Sequence[int]]]
    """Admitting version -> groups -> response tokens."""
    prompt_tokens: float

    def draw(self, version: int, count: int, chance: random.Random) -> list[int]:
        versions = sorted(self.by_version)
        # The last version at or before it that admitted groups; the first one, where none did.
        place = max(0, bisect.bisect_right(versions, version) - 1)
        group = chance.choice(self.by_version[versions[place]])
        return list(group) if len(group) == count else chance.choices(group, k=count)

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
