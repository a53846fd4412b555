"""pass@k, maj@k and best@k of a model for all k, from tallies of its samples, and how far two models
differ.
"""

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from asyncrl.observe.metrics.estimates import Difference, mean_of_draws, paired_difference
from asyncrl.system.words import signed

# Each is the exact expectation over all subsets of k samples, drawn without replacement, so it is unbiased,
# and no subset is drawn. Only a vote over more than `EXACT_SAMPLES` samples is estimated, from `NUM_ORDERS`
# random orders of a fixed seed. All terms of each sum have one sign: nothing cancels.
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


@dataclass(frozen=True, slots=True)
class Tally:
    """The graded samples of one task; those without a verdict are left out."""

    num_samples: int
    num_correct: int
    answers: tuple[tuple[int, int], ...] | None
    """(samples with it, correct ones among them) of each answer, most first; None where answers are not
    known, as the verifier reads none. A sample without an answer is in none."""
    scores: tuple[float, ...] | None = None
    """Score of each sample; None where each is 0 or 1."""

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "Tally":
        answers, scores = found["answers"], found.get("scores")
        return cls(
            found["num_samples"],
            found["num_correct"],
            None if answers is None else tuple((size, correct) for size, correct in answers),
            None if scores is None else tuple(scores),
        )

    def as_json(self) -> dict[str, Any]:
        answers = None if self.answers is None else [list(pair) for pair in self.answers]
        found: dict[str, Any] = {
            "num_samples": self.num_samples,
            "num_correct": self.num_correct,
            "answers": answers,
        }
        return found if self.scores is None else {**found, "scores": list(self.scores)}

    def passed(self) -> tuple[float, ...]:
        """pass@k for k = 1 to the number of samples."""
        return chances_of_a_correct_draw(self.num_correct, self.num_samples)

    def majority(self) -> tuple[float, ...]:
        """maj@k: the chance that the elected answer is correct. An answer whose samples have different
        verdicts is correct by their share."""
        answers = self.answers or ()
        without = self.num_samples - sum(size for size, _ in answers)
        total = [0.0] * self.num_samples
        for place, (size, correct) in enumerate(answers):
            if correct:
                others = tuple(other for at, (other, _) in enumerate(answers) if at != place)
                chances = chances_of_election(size, others, without)
                total = [sum_ + correct / size * chance for sum_, chance in zip(total, chances, strict=True)]
        return tuple(min(1.0, chance) for chance in total)

    def best(self) -> tuple[float, ...]:
        """best@k: the mean of the highest of k scores."""
        return best_of_draws(self.scores or ())


MEASURES: Mapping[str, Callable[[Tally], tuple[float, ...]]] = {
    "pass": Tally.passed,
    "maj": Tally.majority,
    "best": Tally.best,
}
TITLES = {
    "pass": "pass@k: one of k samples is correct",
    "maj": "maj@k: the answer that most of k samples give is correct",
    "best": "best@k: the highest score of k samples",
}


class Curve(TypedDict):
    """A measure of one model; index 0 is k = 1. Means over tasks with the ends of their 95% intervals."""

    mean: list[float]
    low: list[float]
    high: list[float]
    num_tasks: list[int]
    """Tasks with k verdicts at least; the others are left out."""


class DifferenceAt(TypedDict):
    """Mean difference between two models, paired over tasks, with its 95% interval."""

    k: int
    mean: float
    low: float
    high: float
    num_tasks: int


class Contrast(TypedDict):
    """How far a model's curve lies above another's."""

    differences: list[DifferenceAt]
    """At `chosen` k."""
    crossing: int | None
    """The k from which on the other one is ahead, up to the largest; None where the curves do not cross."""


def chosen(most: int) -> list[int]:
    """1, 2, 4, ..., `most`."""
    return sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})


def measures_of(tallies: Sequence[Tally]) -> list[str]:
    """Names of the measures that the tallies know; at least one has a sample."""
    known = [tally for tally in tallies if tally.num_samples]
    has_answers = all(tally.answers is not None for tally in known)
    has_scores = any(tally.scores is not None for tally in known)
    return ["pass", *(["maj"] if has_answers else []), *(["best"] if has_scores else [])]


def curves_of(tallies: Sequence[Tally]) -> dict[str, Curve]:
    """Measure -> its curve, up to the largest k that a task has samples for."""
    return {name: _curve(_scores(tallies, name)) for name in measures_of(tallies)}


def contrast(first: Sequence[Tally], second: Sequence[Tally], name: str) -> Contrast | None:
    """`second` less `first` by the measure `name`: tallies of the same tasks in one order. None where no task
    has samples of both."""
    scores = [
        (before, after)
        for before, after in zip(_scores(first, name), _scores(second, name), strict=True)
        if before and after
    ]
    if not scores:
        return None
    most = max(min(len(before), len(after)) for before, after in scores)
    pairs = [
        [(b[k - 1], a[k - 1]) for b, a in scores if min(len(b), len(a)) >= k] for k in range(1, most + 1)
    ]
    differences = [_at(k, paired_difference(*zip(*pairs[k - 1], strict=True))) for k in chosen(most)]
    return Contrast(differences=differences, crossing=_crossing([_mean(each) for each in pairs]))


def _scores(tallies: Sequence[Tally], name: str) -> list[tuple[float, ...]]:
    return [MEASURES[name](tally) for tally in tallies]


def _curve(scores: Sequence[tuple[float, ...]]) -> Curve:
    curve = Curve(mean=[], low=[], high=[], num_tasks=[])
    for k in range(1, max(map(len, scores)) + 1):
        usable = [task for task in scores if len(task) >= k]
        found = mean_of_draws([task[k - 1] for task in usable], [len(task) for task in usable], k)
        curve["mean"].append(found.mean)
        curve["low"].append(found.low)
        curve["high"].append(found.high)
        curve["num_tasks"].append(found.num_tasks)
    return curve


def _at(k: int, found: Difference) -> DifferenceAt:
    return DifferenceAt(k=k, mean=found.mean, low=found.low, high=found.high, num_tasks=found.num_tasks)


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    mean = math.fsum(after - before for before, after in pairs) / len(pairs)
    # Sums of other orders end a rounding apart.
    return 0.0 if abs(mean) < 1e-9 else mean


def _crossing(means: Sequence[float]) -> int | None:
    """The k at which the sign becomes the last one, where there was another before."""
    last = next((mean for mean in reversed(means) if mean), 0.0)
    others = [k for k, mean in enumerate(means, start=1) if mean * last < 0]
    if not others:
        return None
    return next(k for k, mean in enumerate(means, start=1) if k > others[-1] and mean * last > 0)


class Compared(TypedDict):
    """The curves of several models on one evaluation set, the others beside the first."""

    models: list[str]
    curves: dict[str, list[Curve | None]]
    """Measure -> the curve of each model; None where a model has not that measure."""
    contrasts: dict[str, list[Contrast | None]]
    """Measure -> each model less the first; None for the first itself."""
    sentences: list[str]
    """For each model but the first: whether it solves more tasks than the first, by pass@k."""


def compare(models: Sequence[str], tallies: Sequence[Sequence[Tally]]) -> Compared:
    """`tallies` has those of each model, all of the same tasks in one order."""
    of_models = [curves_of(each) if any(t.num_samples for t in each) else {} for each in tallies]
    names = [name for name in MEASURES if any(name in curves for curves in of_models)]
    contrasts: dict[str, list[Contrast | None]] = {
        name: [
            contrast(tallies[0], each, name) if place and name in of_models[0] and name in curves else None
            for place, (each, curves) in enumerate(zip(tallies, of_models, strict=True))
        ]
        for name in names
    }
    return Compared(
        models=list(models),
        curves={name: [curves.get(name) for curves in of_models] for name in names},
        contrasts=contrasts,
        sentences=[
            sentence_of(models[0], label, found)
            for label, found in zip(models, contrasts.get("pass", []), strict=False)
            if found is not None
        ],
    )


def compare_rows(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Compared | None:
    """The curves of results, (label, row as `asyncrl eval` writes it); None without samples."""
    known = [(label, row["tallies"]) for label, row in rows if row.get("tallies")]
    if not known:
        return None
    tallies = [[Tally.of_json(tally) for tally in each] for _, each in known]
    return compare([label for label, _ in known], tallies)


def sentence_of(first: str, second: str, found: Contrast) -> str:
    """Whether `second` widens what `first` can solve, as far as the largest k and its interval say."""
    last = found["differences"][-1]
    k, is_ahead = last["k"], last["mean"] >= 0
    ahead, behind = (second, first) if is_ahead else (first, second)
    at = "At" if found["crossing"] is None else f"The curves cross at k = {found['crossing']}; at"
    if last["low"] <= 0 <= last["high"]:
        return (
            f"{at} k = {k} the 95% interval of the difference between {second} and {first} holds 0 "
            f"({_points(last)}): whether {second} solves more tasks than {first} within {k} samples is open."
        )
    difference = f"{second} less {first}: {_points(last)}"
    words = f"{at} k = {k} {ahead} solves more tasks than {behind} ({difference})"
    if first != "base":
        return f"{words}."
    if is_ahead:
        return f"{words}: training widened what the model solves within {k} samples."
    return f"{words}: training narrowed what the model solves within {k} samples."


def _points(found: DifferenceAt) -> str:
    low, high = signed(100 * found["low"], 1), signed(100 * found["high"], 1)
    return f"{signed(100 * found['mean'], 1)} points, 95% {low} to {high}"
