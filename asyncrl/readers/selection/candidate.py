"""A response that may be selected, which responses of a journal are looked at, and the fate of each."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from asyncrl.errors import InputError, did_you_mean
from asyncrl.journal.responses import GradedResponse, TrainedResponse
from asyncrl.records import Score, VerifierSpec, source_of


class Fate(StrEnum):
    """Ordered by how far a response came: a group, or a row, has the fate of the one that came furthest."""

    NOT_GRADED = "not graded"
    NO_ROW = "data.train has no such row"
    EVALUATED = "asks what is evaluated"
    SOURCE = "not of --source"
    ROW = "not of --rows"
    STEP = "not of --steps"
    VERSION = "not of --versions"
    LENGTH = "not of --length"
    COMPACTED = "compacted: its text is gone"
    BRANCHED = "its conversation has branches"
    FAULT = "a fault"
    NO_GOLD = "--verifier cannot read its gold"
    REPEATED = "repeats an earlier response"
    NOT_CORRECT = "not correct"
    NO_ANSWER = "no answer to vote for"
    TIED = "no answer has the most votes"
    OUTVOTED = "outvoted"
    SCORE = "not of --score"
    NO_PARTNER = "no other response to pair with"
    LIMIT = "beyond the limit per row"
    WRITTEN = "written"


ORDER = {fate: place for place, fate in enumerate(Fate)}
UNITS = ("rows", "groups", "responses")


def furthest(fates: Iterable[Fate], otherwise: Fate = Fate.NOT_GRADED) -> Fate:
    """The fate of the response that came furthest; `otherwise` without any."""
    return max(fates, key=ORDER.__getitem__, default=otherwise)


@dataclass
class Account:
    """Counts what was seen where it is read, and fates where they are decided."""

    seen: Counter[str] = field(default_factory=Counter)
    """By unit."""
    fates: dict[str, Counter[Fate]] = field(default_factory=lambda: {unit: Counter() for unit in UNITS})
    num_generated: int = 0
    """Responses that the journal does not have, among those seen."""
    num_generated_tokens: int = 0
    """Their tokens."""

    def see_groups(self, num_groups: int) -> None:
        self.seen["groups"] += num_groups

    def see_row(self, num_responses: int, generated_tokens: Sequence[int] = ()) -> None:
        """A row with its responses, generated ones among them, whose numbers of tokens are named."""
        self.seen["rows"] += 1
        self.seen["responses"] += num_responses
        self.num_generated += len(generated_tokens)
        self.num_generated_tokens += sum(generated_tokens)

    def settle(self, groups: Mapping[int, Sequence[Fate]], generated: Sequence[Fate], row: Fate) -> None:
        """The fates of a row's journaled responses, group by group, of its generated ones, and of the row
        where it has none."""
        of_groups = [furthest(fates) for fates in groups.values()]
        self.fates["groups"].update(of_groups)
        responses = [*generated, *(fate for fates in groups.values() for fate in fates)]
        self.fates["responses"].update(responses)
        self.fates["rows"][furthest([*responses, *of_groups], row)] += 1

    def check(self, *, num_written: int) -> None:
        """Raises AssertionError where something seen has no fate, or two, or where the file does not hold
        `num_written` responses: a defect, never to be ignored."""
        for unit in UNITS:
            total = self.fates[unit].total()
            if total != self.seen[unit]:
                raise AssertionError(
                    f"the selection saw {self.seen[unit]} {unit} and accounts for {total}: {self.fates[unit]}"
                )
        told = self.fates["responses"][Fate.WRITTEN]
        if told != num_written:
            raise AssertionError(f"the selection wrote {num_written} responses and accounts for {told}")

    def as_json(self) -> dict[str, object]:
        """Fates by unit, without those that nothing has."""
        fates = {
            unit: {fate.value: count for fate, count in sorted(found.items(), key=lambda f: -ORDER[f[0]])}
            for unit, found in self.fates.items()
        }
        seen = {unit: self.seen[unit] for unit in UNITS}
        made = {"generated": self.num_generated, "generated_tokens": self.num_generated_tokens}
        return {"seen": seen, **made, **fates}

    def lines(self) -> list[tuple[str, ...]]:
        """(fate, rows, groups, responses), what was written first; the last line is what was seen."""
        present = [fate for fate in reversed(Fate) if any(self.fates[unit][fate] for unit in UNITS)]
        shown = [Fate.WRITTEN, *(fate for fate in present if fate is not Fate.WRITTEN)]
        rows = [(fate.value, *(f"{self.fates[unit][fate]:,}" for unit in UNITS)) for fate in shown]
        return [*rows, ("seen", *(f"{self.seen[unit]:,}" for unit in UNITS))]


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
