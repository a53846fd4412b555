"""Scores from comparisons: the points of each response against the others, by matches or by rankings."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from verifiers.judge_answer import last_line

_RANKING = re.compile(
    r"[\s*_`#]*(?:(?i:(?:final\s+)?ranking)\b)?[\s*_:`]*(\d{1,4}(?:\s*[>=]\s*\d{1,4})*)[\s*_.`]*"
)
MIN_SHARE = 0.5
"""The share of a response's matches that must have a result, for it to have a score."""


@dataclass(frozen=True, slots=True)
class Match:
    """The points of the first of two responses: 1 for a win, 0.5 for a tie, 0 for a loss."""

    points: float | None
    """None: no result."""
    problem: str = ""
    """Why there is none."""

    def turned(self) -> "Match":
        """The same for the second one."""
        return self if self.points is None else Match(1.0 - self.points)

    def averaged(self, other: "Match") -> "Match":
        """Both orders of the same two; no result where one is missing, which would favor a place."""
        for each in (self, other):
            if each.points is None:
                return each
        assert self.points is not None and other.points is not None
        return Match((self.points + other.points) / 2)


def pairings(num: int, opponents: int) -> list[tuple[int, int]]:
    """All pairs where `opponents` is 0 or there are no more; else each response meets `opponents` / 2 that
    follow it in a ring, and as many before it."""
    if not 0 < opponents < num - 1:
        return [(i, j) for i in range(num) for j in range(i + 1, num)]
    return [(i, (i + step) % num) for step in range(1, opponents // 2 + 1) for i in range(num)]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The points of each response against each other one, summed: those that it beats, half of its ties."""

    points: tuple[float, ...]

    @classmethod
    def read(cls, reply: str, num: int) -> "Ranking":
        """From the last line of a reply, such as "Ranking: 3 > 1 = 2". Raises ValueError without one."""
        found = _RANKING.fullmatch(last_line(reply))
        levels = [] if found is None else [level.split("=") for level in found[1].split(">")]
        labels = [int(label) for level in levels for label in level]
        if sorted(labels) != list(range(1, num + 1)):
            raise ValueError(f"the last line of the judge's reply is no ranking of 1 to {num}")
        points, below = [0.0] * num, num
        for level in levels:
            below -= len(level)
            for label in level:
                points[int(label) - 1] = below + (len(level) - 1) / 2
        return cls(tuple(points))

    def of_places(self, order: Sequence[int]) -> "Ranking":
        """The ranking of what was shown in this order, in the order of their places."""
        points = dict(zip(order, self.points, strict=True))
        return Ranking(tuple(points[place] for place in range(len(order))))


@dataclass(frozen=True, slots=True)
class Compared:
    """One response against the others."""

    points: float | None
    """None: no result against any of them, or too few."""
    num_others: int = 0
    """Others that `points` are of."""
    num_beaten: int = 0
    """Others that it beats besides, because they were not shown."""
    problem: str = ""

    def beating(self, num: int) -> "Compared":
        return replace(self, num_beaten=num)

    def score(self) -> float | None:
        """The share of the others that it beats."""
        if self.problem:
            return None
        return ((self.points or 0.0) + self.num_beaten) / (self.num_others + self.num_beaten)

    def words(self) -> str:
        points = (self.points or 0.0) + self.num_beaten
        return f"{points:g} points against {self.num_others + self.num_beaten} others"

    @classmethod
    def of_matches(
        cls, num: int, pairs: Sequence[tuple[int, int]], matches: Sequence[Match]
    ) -> list["Compared"]:
        own: list[list[Match]] = [[] for _ in range(num)]
        for (first, second), match in zip(pairs, matches, strict=True):
            own[first].append(match)
            own[second].append(match.turned())
        return [cls._of_own(each) for each in own]

    @classmethod
    def _of_own(cls, matches: Sequence[Match]) -> "Compared":
        points = [match.points for match in matches if match.points is not None]
        if len(points) < MIN_SHARE * len(matches) or not points:
            problem = next(match.problem for match in matches if match.points is None)
            lost = len(matches) - len(points)
            return cls(None, problem=f"{lost} of {len(matches)} comparisons have no result: {problem}")
        return cls(sum(points), len(points))

    @classmethod
    def of_rankings(cls, shown: Sequence[Hashable], rankings: Sequence[Ranking]) -> list["Compared"]:
        """Equal responses get the mean of their points."""
        means = [
            sum(points) / len(rankings) for points in zip(*(each.points for each in rankings), strict=True)
        ]
        places: dict[Hashable, list[int]] = {}
        for place, each in enumerate(shown):
            places.setdefault(each, []).append(place)
        for equal in places.values():
            mean = sum(means[place] for place in equal) / len(equal)
            for place in equal:
                means[place] = mean
        return [cls(points, len(shown) - 1) for points in means]
