"""The records that travel between the parts: one type per stage, a field exists when it is true.

Task -> Group of Trajectory (prompt + Segments, growing) -> Batch of Sequence (scored, for the trainer).
No torch and no numpy: tokens and log-probs are plain lists, so that every process can read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PolicyVersion = int
"""Number of optimizer steps behind the weights; 0 is the base model. Only the trainer increments it."""


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """Which verifier grades a task, with its options, as the data row or the recipe names it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One verifiable problem: a row of a data file, read and checked."""

    task_id: str
    """Stable over runs: "<file stem>:<line number>"."""
    prompt: str
    """The text the model continues: a chat prompt is rendered before it comes here."""
    prompt_tokens: tuple[int, ...]
    reference: Any
    """What the verifier made of the row's answer (`Verifier.parse_reference`)."""
    verifier: VerifierSpec


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a server samples; behavior log-probs are of this distribution."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that one policy version sampled, confirmed by the server's version spans."""

    version: PolicyVersion
    tokens: list[int]
    behavior_logprobs: list[float]
    """As long as `tokens`; natural log, of the distribution the tokens were sampled from."""
    is_continued_in_place: bool = False
    """True when the keys and values before it were computed by an older version (pause mode in_place)."""


class Finish(StrEnum):
    """Why a trajectory ended."""

    STOP = "stop"
    LENGTH = "length"


class DropReason(StrEnum):
    """Why tokens that were generated will never be trained."""

    FAULT = "fault"
    """No verdict: the trajectory left before the baseline, or its group, with fewer than two left."""
    UNCONFIRMED = "unconfirmed"
    """Streamed by a server that broke off before it said which version had made them, or after their group
    was dropped."""
    NO_SIGNAL = "no_signal"
    """Raw correctness gave all its trajectories an advantage of 0: no gradient, and the recipe asks for
    others instead."""
    SERVER = "server"
    """Servers kept failing on this trajectory until its retries were spent."""
    STALE = "stale"
    """Its oldest token would have been older than rollout.abort_staleness at training."""
    OUTLIVED = "outlived"
    """Begun by one version and left to the next, by a crash or a stop, where rollout.interrupt is drain."""
    BASELINE = "baseline"
    """Greedy, generated for its reward alone."""


@dataclass(slots=True)
class Trajectory:
    """A prompt and the segments generated so far. Grows while it streams; versions never decrease."""

    trajectory_id: str
    prompt_tokens: tuple[int, ...]
    segments: list[Segment] = field(default_factory=list)
    finish: Finish | None = None
    is_greedy: bool = False
    """Generated at temperature 0 for its reward alone: a baseline, never trained."""

    def response_tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    def num_response_tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)

    def extend(self, segment: Segment) -> None:
        """Appends `segment`, as part of the last one when both are of one version and one cache."""
        last = self.segments[-1] if self.segments else None
        if (
            last is not None
            and last.version == segment.version
            and last.is_continued_in_place == segment.is_continued_in_place
        ):
            last.tokens.extend(segment.tokens)
            last.behavior_logprobs.extend(segment.behavior_logprobs)
        else:
            self.segments.append(segment)


@dataclass(frozen=True, slots=True)
class Score:
    """What a verdict says of one trajectory, as far as training and its filters need to know."""

    outcome: str
    """A `verifiers.verdict.Outcome` value."""
    correctness: float | None
    """Raw score in [0, 1]; None iff the outcome is a fault."""
    reward: float | None
    """Correctness plus shaping; None iff the outcome is a fault."""
    extracted: str | None
    detail: str
    seconds: float
    method: str = ""
    """How the verifier found the answer; empty after a resume and where it does not extract."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """One scored trajectory as the trainer sees it: numbers only."""

    sequence_id: str
    prompt_tokens: list[int]
    response_tokens: list[int]
    behavior_logprobs: list[float]
    """[len(response_tokens)] natural log."""
    token_versions: list[int]
    """[len(response_tokens)] the policy version that sampled each token."""
    are_continued: list[bool]
    """[len(response_tokens)] whether the keys and values before the token are of an older version."""
    advantage: float
    """The same for each token of the response."""
    reward: float

    @classmethod
    def of(cls, trajectory: Trajectory, *, reward: float, advantage: float) -> "Sequence":
        segments = trajectory.segments
        return cls(
            sequence_id=trajectory.trajectory_id,
            prompt_tokens=list(trajectory.prompt_tokens),
            response_tokens=trajectory.response_tokens(),
            behavior_logprobs=[logprob for segment in segments for logprob in segment.behavior_logprobs],
            token_versions=[segment.version for segment in segments for _ in segment.tokens],
            are_continued=[segment.is_continued_in_place for segment in segments for _ in segment.tokens],
            advantage=advantage,
            reward=reward,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What one optimizer step trains on."""

    step: int
    """Trained by the step that makes version step + 1 out of version step."""
    temperature: float
    """Log-probs are taken of logits / temperature, as they were sampled."""
    sequences: list[Sequence]


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What became of one server in the trainer's last publish."""

    is_installed: bool
    seconds: float
    detail: str = ""
    """Why not, when not installed."""
