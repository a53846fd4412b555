"""A response that may be selected, and which responses of a journal are looked at."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from asyncrl.errors import InputError, did_you_mean
from asyncrl.journal.responses import GradedResponse, TrainedResponse
from asyncrl.readers.selection.fates import Fate
from asyncrl.records import Score, VerifierSpec, source_of


@dataclass(frozen=True, slots=True)
class GeneratedTokens:
    prompt: Sequence[int]
    response: Sequence[int]


@dataclass(frozen=True, slots=True)
class Candidate:
    response_id: str
    """Its trajectory, or a name of its own."""
    row_id: str
    group_id: int | None
    """None where it was generated for the selection."""
    step: int | None
    version_min: int
    version_max: int
    """The newest of the versions that sampled it."""
    finish: str
    """stop, or length where it was cut off."""
    text: str
    num_tokens: int
    score: Score
    verifier: VerifierSpec
    asked: str = ""
    """The text that the model continued."""
    has_turns: bool = False
    generated: GeneratedTokens | None = None
    """Tokens of one that the journal does not have."""

    @classmethod
    def of(cls, found: GradedResponse, row_id: str, verifier: VerifierSpec) -> "Candidate":
        """A graded response whose text is there."""
        assert found.text is not None and found.outcome is not None
        return cls(
            found.trajectory_id,
            row_id,
            found.group_id,
            found.step,
            found.version_min,
            found.version_max,
            found.finish or "",
            found.text,
            found.num_tokens,
            Score(found.outcome, found.correctness, found.reward, found.extracted, found.detail or "", 0.0),
            verifier,
            asked=found.prompt,
            has_turns=found.has_turns,
        )

    def is_correct(self) -> bool:
        """By its verdict alone: one that was cut off is correct where that says so."""
        return self.score.outcome == "correct"

    def correctness(self) -> float:
        """In [0, 1]. Faults are no candidates."""
        assert self.score.correctness is not None
        return self.score.correctness

    def recorded(self) -> TrainedResponse:
        """As an audit grades it again."""
        score = self.score
        return TrainedResponse(
            *(self.response_id, self.row_id, self.step or 0, self.asked, self.text),
            *(score.outcome, score.reward, score.extracted, score.detail),
        )


Range = tuple[int, int]
"""Both ends included."""


@dataclass(frozen=True, slots=True)
class Filters:
    """None lets all through."""

    steps: Range | None = None
    versions: Range | None = None
    """Versions of every token."""
    lengths: Range | None = None
    """In sampled tokens."""
    sources: frozenset[str] = frozenset()
    """Labels; empty for all."""
    rows: Range | None = None
    """Numbers of rows in their source, from 1."""

    def check_sources(self, known: Collection[str]) -> None:
        """Raises InputError for a label that no row has."""
        for name in sorted(self.sources - {*known}):
            raise InputError(
                f"--source is {name}, expected one of {', '.join(sorted(known))}.{did_you_mean(name, known)}"
            )

    def refuses_row(self, row_id: str) -> Fate | None:
        """Why no response to a row is looked at; None for one that is."""
        if self.sources and source_of(row_id) not in self.sources:
            return Fate.SOURCE
        if self.rows is None:
            return None
        number = int(row_id.rpartition(":")[2])
        return None if _holds(self.rows, number, number) else Fate.ROW

    def refuses(self, found: GradedResponse) -> Fate | None:
        """Why a journaled response is not looked at; None for one that is."""
        if not _holds(self.steps, found.step, found.step):
            return Fate.STEP
        if not _holds(self.versions, found.version_min, found.version_max):
            return Fate.VERSION
        return None if _holds(self.lengths, found.num_tokens, found.num_tokens) else Fate.LENGTH

    def refuses_generated(self, found: Candidate) -> Fate | None:
        """As `refuses`: the model was named, so that steps and versions are not asked."""
        return None if _holds(self.lengths, found.num_tokens, found.num_tokens) else Fate.LENGTH


def _holds(bounds: Range | None, low: int, high: int) -> bool:
    return bounds is None or bounds[0] <= low <= high <= bounds[1]


def parse_range(option: str, text: str | None, *, least: int) -> Range | None:
    """ "10-20" or "10", from `least` on. Raises InputError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (-1, -1) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not least <= first <= last:
        raise InputError(f"{option} is {text}, expected a range of numbers from {least}, such as 10-20.")
    return first, last


def parse_scores(text: str | None) -> tuple[float, float]:
    """ "0.5-1" or "1", within [0, 1]; all scores for None. Raises InputError."""
    if text is None:
        return 0.0, 1.0
    found = re.fullmatch(r"(\d*\.?\d+)(?:-(\d*\.?\d+))?", text)
    low, high = (-1.0, -1.0) if found is None else (float(found[1]), float(found[2] or found[1]))
    if not 0.0 <= low <= high <= 1.0:
        raise InputError(f"--score is {text}, expected a range of scores within 0 and 1, such as 0.5-1.")
    return low, high
