"""Adaptive groups: which pilots get the rest of their group.

A group is extended once all of its pilot is graded. It is where the pilot has an advantage other than 0 or
is mixed, where none of it has a verdict, where scores lie between right and wrong, and where the chance that
the whole group becomes mixed is `min_chance` at least: by the pilot's rewards, the record of the row
(`PassRates`) and how sure the policy was of what it sampled (`Surprise`). Else the pilot is the group: its
rewards are equal, its advantages 0, and replay.drops_no_signal decides as of any group without a signal.

docs/algorithms.md says what that does to the gradient. The decision is in the journal as the trajectories of
the group: one that a crash comes before is made again.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asyncrl.records import PolicyVersion, Task, Trajectory
from asyncrl.replay.group import Group
from asyncrl.tasks.pass_rates import PassRates

FEWEST_KNOWN = 64
"""Extended pilots of equal rewards that the regression is fitted to at least; before, rewards alone count."""
MOST_KNOWN = 512
"""The newest of them count: the policy changes."""
EXPLORED_EVERY = 16
"""One in 16 groups is extended whatever its chance: the regression sees all kinds of pilots."""
_NUM_FEATURES = 4
_NUM_ITERATIONS = 30
_LEAST_STEP = 1e-9
_LEAST_CHANCE = 1e-3
_LEAST_SURPRISE_NATS = 1e-4


@dataclass(slots=True)
class Known:
    """A pilot whose rewards are equal, as the regression sees it."""

    log_odds: float
    """That the whole group becomes mixed, by rewards alone."""
    features: tuple[float, ...]


def known_of(nats: float, *, is_right: bool, chance: float) -> Known:
    """`nats` as of `mean_nats`; `chance` of a mixed group by rewards alone."""
    chance = min(max(chance, _LEAST_CHANCE), 1.0 - _LEAST_CHANCE)
    surprise, right = math.log(max(nats, _LEAST_SURPRISE_NATS)), float(is_right)
    return Known(math.log(chance / (1.0 - chance)), (1.0, surprise, right, right * surprise))


def mean_nats(pilot: Sequence[Trajectory]) -> float:
    """The mean negative log-prob of a response, branches included."""
    logprobs = (
        logprob
        for each in pilot
        for line in each.lines()
        for segment in line.sampled()
        for logprob in segment.behavior_logprobs
    )
    return -sum(logprobs) / len(pilot)


# With x = (1, z, s, s z), z the logarithm of the mean negative log-prob of the pilot's responses and s 1
# where they are right, the chance is sigmoid(logit(chance by rewards) + w . x): a logistic regression with an
# offset, fitted by Newton's method to the whole groups whose pilot was of equal rewards. A ridge of 1 keeps
# it at the chance by rewards where log-probs say nothing, as with long responses, each of which is
# improbable. Which groups are known depends on x alone, so that the fit is not biased by what was stopped.
@dataclass(slots=True)
class Surprise:
    """How sure the policy was of a pilot, as a sign of whether other samples of the group differ.

    A response of probability q comes N - 1 times more with chance q^(N - 1): what is sampled with certainty
    is sampled again. It knows groups of this process alone: a restart begins with rewards alone.
    """

    _version: PolicyVersion = -1
    _weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros(_NUM_FEATURES))
    _known: deque[tuple[Known, bool]] = field(default_factory=lambda: deque(maxlen=MOST_KNOWN))
    _unread: list[tuple[int, Known, bool]] = field(default_factory=list)
    """(group, pilot, whether it became mixed) since the version was reached."""

    def learned(self, group_id: int, pilot: Known, is_mixed: bool) -> None:
        self._unread.append((group_id, pilot, is_mixed))

    def mixed_chance(self, pilot: Known, version: PolicyVersion) -> float:
        """Chance of a mixed group. It stays during a version, whichever verdict came first."""
        if version > self._version:
            self._version = version
            self._known.extend((known, mixed) for _, known, mixed in sorted(self._unread, key=_group))
            self._unread.clear()
            if len(self._known) >= FEWEST_KNOWN:
                self._weights = _fit(*zip(*self._known, strict=True))
        return float(_sigmoid(pilot.log_odds + np.dot(pilot.features, self._weights)))


def _group(unread: tuple[int, Known, bool]) -> int:
    return unread[0]


def _fit(pilots: tuple[Known, ...], are_mixed: tuple[bool, ...]) -> NDArray[np.float64]:
    x = np.array([pilot.features for pilot in pilots])
    offsets = np.array([pilot.log_odds for pilot in pilots])
    found = np.array(are_mixed, dtype=np.float64)

    def loss(weights: NDArray[np.float64]) -> float:
        log_odds = offsets + x @ weights
        return float(np.logaddexp(0.0, log_odds).sum() - found @ log_odds + weights @ weights / 2)

    weights = np.zeros(_NUM_FEATURES)
    for _ in range(_NUM_ITERATIONS):
        chances = _sigmoid(offsets + x @ weights)
        curvature = (x * (chances * (1.0 - chances))[:, None]).T @ x + np.eye(_NUM_FEATURES)
        step = np.linalg.solve(curvature, x.T @ (found - chances) - weights)
        # A whole step may overshoot where nearly all chances are 0 or 1.
        while loss(weights + step) > loss(weights) and np.abs(step).max() > _LEAST_STEP:
            step /= 2
        weights = weights + step
    return weights


def _sigmoid(log_odds: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(log_odds, -30.0, 30.0))))


@dataclass(frozen=True, slots=True)
class PilotRule:
    """Which pilots of equal rewards get the rest of their group."""

    min_chance: float
    rates: PassRates
    surprise: Surprise = field(default_factory=Surprise)

    def extended(
        self,
        group_id: int,
        row: int | None,
        version: PolicyVersion,
        *,
        num_right: float,
        num_wrong: float,
        num_more: int,
        nats: float,
    ) -> Known | None:
        """The pilot, for `Surprise.learned` once its group is whole; None where the group ends with it."""
        chance = self.rates.mixed_chance(
            row, version, num_right=num_right, num_wrong=num_wrong, num_more=num_more
        )
        pilot = known_of(nats, is_right=num_right > 0, chance=chance)
        is_likely = self.surprise.mixed_chance(pilot, version) >= self.min_chance
        return pilot if is_likely or group_id % EXPLORED_EVERY == EXPLORED_EVERY - 1 else None


@dataclass(frozen=True, slots=True)
class AdaptiveGroups:
    num_pilot: int
    num_samples: int
    """Trajectories of a pilot, and of a whole group."""
    rule: PilotRule
    row_of: Callable[[Task], int | None]
    version: Callable[[], PolicyVersion]
    """The trainer's."""
    decided: Callable[[Group, bool], None] = lambda group, is_extended: None
    """Told of each decision about a pilot."""
    _extended: dict[int, Known] = field(default_factory=dict)
    """Group -> its pilot, of equal rewards, until it ends."""

    def extends(self, group: Group, teaches: bool) -> bool:
        """Whether `group`, all of which is graded, gets the rest of its trajectories. `teaches`: one of its
        advantages is not 0."""
        if len(group.trajectories) >= self.num_samples:
            return False
        is_extended = teaches or self._is_worth(group)
        self.decided(group, is_extended)
        return is_extended

    def ended(self, group: Group) -> None:
        """The group became ready or was dropped."""
        pilot = self._extended.pop(group.group_id, None)
        correctness = _correctness(group)
        if pilot is not None and len(correctness) > self.num_pilot:
            self.rule.surprise.learned(group.group_id, pilot, len(set(correctness)) > 1)

    def _is_worth(self, group: Group) -> bool:
        correctness = _correctness(group)
        if set(correctness) not in ({0.0}, {1.0}):
            return True
        num_right = sum(correctness)
        pilot = self.rule.extended(
            group.group_id,
            self.row_of(group.task),
            self.version(),
            num_right=num_right,
            num_wrong=len(correctness) - num_right,
            num_more=self.num_samples - len(group.trajectories),
            nats=mean_nats(group.trajectories),
        )
        if pilot is not None:
            self._extended[group.group_id] = pilot
        return pilot is not None


def _correctness(group: Group) -> list[float]:
    return [score.correctness for score in group.scores.values() if score.correctness is not None]
