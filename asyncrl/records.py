"""The records that travel between components: one type per stage, with only the fields that exist by then.

Task -> Group of Trajectory (prompt + Segments, growing) -> Batch of Sequence (scored, for the trainer).
No torch and no numpy: tokens and log-probs are plain lists, so that every process can read them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

_T = TypeVar("_T")

PolicyVersion = int
"""Number of optimizer steps behind the weights; 0 is the base model. Only the trainer increments it."""


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """The verifier of a task and its options, as named by the data row or the recipe."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One verifiable problem: a row of a data file, read and checked."""

    task_id: str
    """Stable over runs: "<file stem>:<line number>"."""
    prompt: str
    """The text the model continues; chat prompts are rendered already."""
    prompt_tokens: tuple[int, ...]
    reference: Any
    """The row's answer as parsed by `Verifier.parse_reference`."""
    verifier: VerifierSpec


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a server samples; behavior log-probs are those of this distribution."""

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
    """Sampled over a KV cache of an older version (rollout.interrupt: continue)."""


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
    AFTER_STOP = "after_stop"
    """Sampled after the stop string that ended their trajectory, before its server heard of that."""
    BASELINE = "baseline"
    """Greedy, generated for its reward alone."""


@dataclass(slots=True)
class Trajectory:
    """A prompt and its segments so far. Grows while it streams; versions never decrease."""

    trajectory_id: str
    prompt_tokens: tuple[int, ...]
    segments: list[Segment] = field(default_factory=list)
    finish: Finish | None = None
    is_greedy: bool = False
    """Sampled at temperature 0 as a baseline; never trained."""

    def response_tokens(self) -> list[int]:
        return _joined(segment.tokens for segment in self.segments)

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


def oldest_version(trajectories: Iterable[Trajectory], admitted_version: PolicyVersion) -> PolicyVersion:
    """The oldest version that made one of a group's tokens, or the admitting one while it has none."""
    versions = [segment.version for trajectory in trajectories for segment in trajectory.segments]
    return min(versions, default=admitted_version)


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one trajectory, as training and its filters need it."""

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
    """How the verifier found the answer; empty after a resume, or if it does not extract."""
    trace: str = ""
    """Traceback of a verifier that raised; empty after a resume."""


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """One scored trajectory for the trainer: numbers only."""

    sequence_id: str
    prompt_tokens: list[int]
    response_tokens: list[int]
    behavior_logprobs: list[float]
    """[len(response_tokens)] natural log."""
    token_versions: list[int]
    """[len(response_tokens)] the policy version that sampled each token."""
    are_continued: list[bool]
    """[len(response_tokens)] whether the token was sampled over a KV cache of an older version."""
    advantage: float
    """The same for each token of the response."""
    reward: float

    @classmethod
    def of(cls, trajectory: Trajectory, *, reward: float, advantage: float) -> "ScoredSequence":
        segments = trajectory.segments
        return cls(
            sequence_id=trajectory.trajectory_id,
            prompt_tokens=list(trajectory.prompt_tokens),
            response_tokens=trajectory.response_tokens(),
            behavior_logprobs=_joined(segment.behavior_logprobs for segment in segments),
            token_versions=_joined([segment.version] * len(segment.tokens) for segment in segments),
            are_continued=_joined([s.is_continued_in_place] * len(s.tokens) for s in segments),
            advantage=advantage,
            reward=reward,
        )


def _joined(parts: Iterable[list[_T]]) -> list[_T]:
    """A batch has millions of tokens: no step of the interpreter for each."""
    joined: list[_T] = []
    for part in parts:
        joined += part
    return joined


@dataclass(frozen=True, slots=True)
class Batch:
    """The data of one optimizer step."""

    taken_version: PolicyVersion
    """The trainer's when it took the batch: step taken_version + 1 trains that version on it."""
    temperature: float
    """Log-probs are those of logits / temperature, as in sampling."""
    sequences: list[ScoredSequence]


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """Values of a step for each token of one response. All little-endian float16, clipped to +-65504."""

    trajectory_id: str
    log_ratios: bytes
    """Proximal less behavior log-prob; NaN where the behavior log-prob is not finite."""
    entropies: bytes
    """Entropy of the policy whose gradient the token gave, in nats, at the sampling temperature."""
    advantages: bytes | None = None
    """None where each token has its trajectory's."""


@dataclass(frozen=True, slots=True)
class GradientSpike:
    """The row that carries most of a gradient whose norm is far above the usual."""

    parameter: str
    """As Hugging Face names it."""
    row: int
    share: float
    """The part of the whole gradient's squared norm that the row has."""
    norm: float
    """The whole gradient's, before clipping."""
    times: float
    """The norm, relative to the usual one."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """The result of the trainer's last publish for one server."""

    is_installed: bool
    seconds: float
    detail: str = ""
    """Why not, if not installed."""
