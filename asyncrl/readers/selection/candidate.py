"""A response that may be selected: of the journal, or generated because the journal has too few."""

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.journal.graded_responses import GradedResponse
from asyncrl.journal.trained_responses import TrainedResponse
from asyncrl.records import Score, VerifierSpec


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
