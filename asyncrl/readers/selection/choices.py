"""Which responses to a row are written: the best, the correct ones, the majority's, or pairs of two.

Every choice is given responses with a verdict, in the order of the journal, and no two of one text. Its order
decides between equal ones, so a journal always gives the same file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncrl.errors import InputError, did_you_mean
from asyncrl.readers.selection.candidate import Candidate, Fate


class Vote(NamedTuple):
    """An answer."""

    num_votes: int
    """Responses that give it, those with a text that was there before among them."""
    places: Sequence[int]
    """Places of the responses that give it, among those to choose from."""


Votes = Sequence[Vote]
"""Most votes first."""


@dataclass
class Chosen:
    """Lines of one row, and the fate of each response that was looked at."""

    lines: list[tuple[Candidate, ...]] = field(default_factory=list)
    """One response each, or a pair: the chosen one, the rejected one."""
    fates: dict[str, Fate] = field(default_factory=dict)
    """By response id."""

    def leave(self, candidates: Sequence[Candidate], fate: Fate) -> None:
        self.fates.update((each.response_id, fate) for each in candidates)

    def add(self, lines: Sequence[tuple[Candidate, ...]], limit: int | None) -> None:
        """The first lines, `limit` at most."""
        for number, line in enumerate(lines):
            is_kept = limit is None or number < limit
            self.leave(line, Fate.WRITTEN if is_kept else Fate.LIMIT)
            if is_kept:
                self.lines.append(line)


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds on the responses that are written, and how many of a row there may be."""

    least_score: float = 0.0
    most_score: float = 1.0
    limit: int | None = None

    def split(self, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Those whose score may be written, and the others."""
        fits = [self.least_score <= each.correctness() <= self.most_score for each in candidates]
        return _split(candidates, fits)


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    meaning: str
    choose: Callable[[Sequence[Candidate], Rules, Votes], Chosen]
    is_pairs: bool = False
    votes: bool = False
    """It asks which answers are equal."""


def _split(candidates: Sequence[Candidate], fits: Sequence[bool]) -> tuple[list[Candidate], list[Candidate]]:
    inside = [each for each, fit in zip(candidates, fits, strict=True) if fit]
    return inside, [each for each, fit in zip(candidates, fits, strict=True) if not fit]


def _best(candidates: Sequence[Candidate], rules: Rules, _: Votes) -> Chosen:
    """Best of n: the highest raw score; of equal ones the higher reward, then the shorter response. A score
    of 0 is no best."""
    chosen = Chosen()
    above, others = _split(candidates, [each.correctness() > 0 for each in candidates])
    chosen.leave(others, Fate.NOT_CORRECT)
    kept, others = rules.split(above)
    chosen.leave(others, Fate.SCORE)
    kept.sort(key=lambda each: (-each.correctness(), -(each.score.reward or 0.0), each.num_tokens))
    chosen.add([(each,) for each in kept], rules.limit or 1)
    return chosen


def _correct(candidates: Sequence[Candidate], rules: Rules, _: Votes) -> Chosen:
    chosen, kept = _correct_ones(candidates, rules)
    chosen.add([(each,) for each in kept], rules.limit)
    return chosen


def _shortest(candidates: Sequence[Candidate], rules: Rules, _: Votes) -> Chosen:
    chosen, kept = _correct_ones(candidates, rules)
    kept.sort(key=lambda each: each.num_tokens)
    chosen.add([(each,) for each in kept], rules.limit or 1)
    return chosen


def _majority(candidates: Sequence[Candidate], rules: Rules, votes: Votes) -> Chosen:
    """The responses whose answer most of them give, whether it is right or not; none where two answers have
    as many votes."""
    chosen = Chosen()
    voting = {place for vote in votes for place in vote.places}
    chosen.leave([each for place, each in enumerate(candidates) if place not in voting], Fate.NO_ANSWER)
    if len(votes) > 1 and votes[0].num_votes == votes[1].num_votes:
        chosen.leave([candidates[place] for place in voting], Fate.TIED)
        return chosen
    first = {*votes[0].places} if votes else set()
    chosen.leave([candidates[place] for place in voting - first], Fate.OUTVOTED)
    kept, others = rules.split([candidates[place] for place in sorted(first)])
    chosen.leave(others, Fate.SCORE)
    chosen.add([(each,) for each in kept], rules.limit)
    return chosen


def _pairs(candidates: Sequence[Candidate], rules: Rules, _: Votes) -> Chosen:
    """A correct response against one that is not: the first of both, the second of both, ..."""
    chosen, kept = _correct_ones(candidates, rules)
    wrong = [each for each in candidates if not each.is_correct()]
    # A verifier may score one that it calls wrong above one that it calls correct.
    pairs = [pair for pair in zip(kept, wrong, strict=False) if pair[0].correctness() > pair[1].correctness()]
    chosen.leave([*kept, *wrong], Fate.NO_PARTNER)
    chosen.add(pairs, rules.limit)
    return chosen


def _short_pairs(candidates: Sequence[Candidate], rules: Rules, _: Votes) -> Chosen:
    """A short correct response against a long correct one: the shortest against the longest, and so on."""
    chosen, kept = _correct_ones(candidates, rules)
    kept.sort(key=lambda each: each.num_tokens)
    chosen.leave(kept, Fate.NO_PARTNER)
    half = len(kept) // 2
    pairs = zip(kept[:half], kept[: -half - 1 : -1], strict=True)
    chosen.add([pair for pair in pairs if pair[0].num_tokens < pair[1].num_tokens], rules.limit)
    return chosen


def _correct_ones(candidates: Sequence[Candidate], rules: Rules) -> tuple[Chosen, list[Candidate]]:
    chosen = Chosen()
    right, wrong = _split(candidates, [each.is_correct() for each in candidates])
    chosen.leave(wrong, Fate.NOT_CORRECT)
    kept, others = rules.split(right)
    chosen.leave(others, Fate.SCORE)
    return chosen, kept


CHOICES = {
    choice.name: choice
    for choice in (
        Choice("best", "best of n: the response with the highest score above 0", _best),
        Choice("correct", "all correct responses", _correct),
        Choice("shortest", "the shortest correct response", _shortest),
        Choice(
            "majority", "the responses whose answer has the most votes, right or wrong", _majority, votes=True
        ),
        Choice("pairs", "pairs of a correct response and one that is not", _pairs, is_pairs=True),
        Choice("short_pairs", "pairs of a short and a long correct response", _short_pairs, is_pairs=True),
    )
}


def find_choice(name: str) -> Choice:
    """Raises InputError with the nearest name."""
    if name not in CHOICES:
        near = did_you_mean(name, CHOICES)
        raise InputError(f"--choose is {name}, expected {', '.join(CHOICES)}.{near}")
    return CHOICES[name]
