"""The records that travel between components: one type per stage, with only the fields that exist by then.

Task -> Group of Trajectory (prompt + Segments, growing) -> Batch of Sequence (scored, for the trainer).
No torch and no numpy: tokens and log-probs are plain lists, so that every process can read them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

_T = TypeVar("_T")

Credits = list[tuple[int, float]]
"""(place among the sampled tokens of a trajectory, branch after branch, reward), by place; each place once,
no reward of 0."""
CREDITS = "credits"
"""Name of the column (`Columns`) of the same: float32 of each sampled token."""
TurnAdvantages = list[tuple[int, float]]
"""(sampled tokens, advantage) of each turn that has tokens, in order, branch after branch."""

Columns = dict[str, bytes]
"""Values that features have for tokens beside their log-probs, by name, in the feature's format: the core
carries them and reads none. Those of parts that follow each other are joined as they are."""

PolicyVersion = int
"""Number of optimizer steps behind the weights; 0 is the base model. Only the trainer increments it."""


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """The verifier of a task and its options, as named by the data row or the recipe."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The environment of a task and its options, as named by the data row or the recipe."""

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
    environment: EnvironmentSpec | None = None
    """Answers its turns; None where nothing or only tools do."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The prompt as chat messages; empty where it is text, and where `row` is."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row's columns, as far as they are JSON; empty where neither turns, an agent nor the verifier read
    them."""

    def source(self) -> str:
        """Label of the source that the row is of: a file's stem, or a name and a split."""
        return source_of(self.task_id)


def source_of(task_id: str) -> str:
    """The source in a task's id."""
    return task_id.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a server samples; behavior log-probs are those of this distribution."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    top_p: float = 1.0
    """Keeps the likeliest tokens until their probabilities sum to this."""
    top_k: int | None = None
    """Keeps this many of the likeliest tokens; None for all."""
    min_p: float = 0.0
    """Keeps tokens with at least this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that the response has already, and multiplies negative ones."""

    def is_truncated(self) -> bool:
        """Whether some tokens are not kept, so that log-probs are of fewer than all."""
        return self.top_p < 1 or self.top_k is not None or self.min_p > 0

    def settings(self) -> dict[str, float]:
        """Settings that make the distribution another than the model's at this temperature, by name."""
        neutral = {"top_p": 1.0, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0}
        return {name: getattr(self, name) for name, value in neutral.items() if getattr(self, name) != value}


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that one policy version sampled, confirmed by the server's version spans."""

    version: PolicyVersion
    tokens: list[int]
    behavior_logprobs: list[float]
    """As long as `tokens`; natural log, of the distribution the tokens were sampled from."""
    is_continued_in_place: bool = False
    """Sampled over a KV cache of an older version (rollout.interrupt: continue)."""
    columns: dict[str, bytearray] = field(default_factory=dict)
    """Values of the tokens that servers sent for features."""
    context: Columns = field(default_factory=dict)
    """Values of the positions in front of the tokens, as far as no earlier segment has them."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Tokens that follow a turn and that no policy sampled: the answer of an environment or a tool, as the
    chat template writes it. Context of what is sampled next, and never trained."""

    tokens: list[int]
    notes: str = ""
    """JSON: the calls, messages and seconds of the turn that it answers, for a replay and for people."""


class Finish(StrEnum):
    """Why a trajectory, or a turn of it, ended."""

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
    ABANDONED = "abandoned"
    """Sampled for a call of an agent that ended, or that was started again and did not ask for it again."""


@dataclass(frozen=True, slots=True)
class RowVisit:
    """A graded group, as the record of its row holds it."""

    group_id: int
    version: PolicyVersion
    """The newest that the trainer had reached when the group was graded: visits of older versions are all
    known once it is at this one."""
    num_graded: int
    correct: float
    """Mean raw score of its trajectories."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One reply that an agent asked for, and the turn that it is."""

    ordinal: int
    """The call's, from 0 within its trajectory."""
    choice: int
    """From 0: one call may ask for several replies."""
    digest: str
    """The canonical request's."""
    branch: int
    """Number of the branch that holds the turn; 0 is the trajectory itself."""
    turn: int
    """From 0 within the branch."""


@dataclass(slots=True)
class Trajectory:
    """A prompt and what followed it so far. Grows while it streams; versions never decrease.

    A *turn* is what was sampled between two observations; without observations there is one. A trajectory may
    have *branches*, records of this type with an id, a context and tokens of their own: an agent's further
    conversations, or turns whose context the chat template wrote otherwise (`prompt.history`). Verdict and
    advantage are the trajectory's, unless an agent's branches are judged each (`agent.verdict`, `roles`).
    """

    trajectory_id: str
    prompt_tokens: tuple[int, ...]
    segments: list[Segment | Observed] = field(default_factory=list)
    finish: Finish | None = None
    turn_finish: Finish | None = None
    """Why the current turn ended, while its observation or the trajectory's end is awaited."""
    is_greedy: bool = False
    """Sampled at temperature 0 as a baseline; never trained."""
    branches: list["Trajectory"] = field(default_factory=list)
    """In the order of their numbers; a branch has none."""
    calls: list[RecordedCall] = field(default_factory=list)
    """Calls of its agent, in order."""
    role: str = ""
    """The agent's role that speaks (`agent.roles`), a branch's own; empty without."""

    def lines(self) -> list["Trajectory"]:
        """The trajectory and its branches."""
        return [self, *self.branches]

    def branch(self, number: int) -> "Trajectory":
        """The branch of this number, 0 for the trajectory itself."""
        return next(line for line in self.lines() if branch_number(line.trajectory_id) == number)

    def newest_line(self) -> "Trajectory":
        """The branch that was opened last, or the trajectory itself; the one that a conversation without an
        agent continues."""
        return self.branches[-1] if self.branches else self

    def num_sampled_in_all(self) -> int:
        """Sampled tokens, those of branches included."""
        return sum(line.num_sampled_tokens() for line in self.lines())

    def response_tokens(self) -> list[int]:
        """All tokens after the prompt, observed ones included."""
        return _joined(segment.tokens for segment in self.segments)

    def num_response_tokens(self) -> int:
        """Tokens after the prompt, observed ones included."""
        return sum(len(segment.tokens) for segment in self.segments)

    def sampled(self) -> list[Segment]:
        """The segments that a policy sampled."""
        return [segment for segment in self.segments if isinstance(segment, Segment)]

    def num_sampled_tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments if isinstance(segment, Segment))

    def turns(self) -> list[list[int]]:
        """The sampled tokens of each turn; the last one is empty after an observation."""
        found: list[list[int]] = [[]]
        for segment in self.segments:
            if isinstance(segment, Observed):
                found.append([])
            else:
                found[-1] += segment.tokens
        return found

    def turn_tokens(self) -> list[int]:
        """The sampled tokens of the current turn."""
        parts: list[list[int]] = []
        for segment in reversed(self.segments):
            if isinstance(segment, Observed):
                break
            parts.append(segment.tokens)
        return _joined(reversed(parts))

    def turn_lengths(self) -> list[int]:
        """Sampled tokens of each turn that has any, branch after branch: the turns that a verdict may
        reward."""
        return [len(turn) for line in self.lines() for turn in line.turns() if turn]

    def answers(self) -> list[Observed]:
        """Its observations, without those of branches."""
        return [part for part in self.segments if isinstance(part, Observed)]

    def last_call(self) -> RecordedCall | None:
        """The last call of an agent, by its first reply."""
        return next((call for call in reversed(self.calls) if call.choice == 0), None)

    def answer_place(self) -> tuple[int, list[int]]:
        """(sampled tokens in front of it, its tokens) of the last turn that has any, or of the last call's
        first reply: what a verifier of one response reads."""
        last = self.last_call()
        found: tuple[int, list[int]] = (self.num_sampled_in_all(), [])
        count = 0
        for line in self.lines():
            for number, turn in enumerate(line.turns()):
                place = branch_number(line.trajectory_id), number
                if turn and (last is None or place == (last.branch, last.turn)):
                    found = count, turn
                count += len(turn)
        return found

    def answer_tokens(self) -> list[int]:
        """The tokens of `answer_place`."""
        return self.answer_place()[1]

    def num_turn_tokens(self) -> int:
        return len(self.turn_tokens())

    def num_observations(self) -> int:
        return sum(isinstance(segment, Observed) for segment in self.segments)

    def num_computed(self) -> int:
        """Positions from the first on that servers have computed for it: all in front of the last sampled
        token."""
        count, found = len(self.prompt_tokens), 0
        for segment in self.segments:
            count += len(segment.tokens)
            if isinstance(segment, Segment):
                found = count - 1
        return found

    def newest_version(self) -> PolicyVersion | None:
        """The version that sampled its last sampled token; None before the first."""
        return next((s.version for s in reversed(self.segments) if isinstance(s, Segment)), None)

    def observe(self, observation: Observed) -> None:
        """Appends what follows the turn that has ended; the next turn begins."""
        self.segments.append(observation)
        self.turn_finish = None

    def extend(self, segment: Segment) -> None:
        """Appends `segment`, as part of the last one when both are of one version and one cache."""
        last = self.segments[-1] if self.segments else None
        if (
            isinstance(last, Segment)
            and last.version == segment.version
            and last.is_continued_in_place == segment.is_continued_in_place
        ):
            last.tokens.extend(segment.tokens)
            last.behavior_logprobs.extend(segment.behavior_logprobs)
            for name, values in segment.columns.items():
                last.columns.setdefault(name, bytearray()).extend(values)
        else:
            self.segments.append(segment)


def oldest_version(trajectories: Iterable[Trajectory], admitted_version: PolicyVersion) -> PolicyVersion:
    """The oldest version that made one of a group's tokens, or the admitting one while it has none."""
    lines = [line for trajectory in trajectories for line in trajectory.lines()]
    return min((segment.version for line in lines for segment in line.sampled()), default=admitted_version)


def branch_id(trajectory_id: str, number: int) -> str:
    """The id of a branch, which are numbered from 1."""
    return f"{trajectory_id}.{number}"


def branch_number(name: str) -> int:
    """0 for a trajectory."""
    return int(name.partition(".")[2] or 0)


def root_id(name: str) -> str:
    """The id of the trajectory that a branch belongs to; its own for a trajectory."""
    return name.partition(".")[0]


def may_teach(advantages: Mapping[str, float], turn_advantages: Mapping[str, TurnAdvantages]) -> bool:
    """Whether a trajectory of a group, or a turn of one, has an advantage other than 0."""
    turns = (advantage for runs in turn_advantages.values() for _, advantage in runs)
    return any(advantages.values()) or any(turns)


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one trajectory, as training and its filters need it."""

    outcome: str
    """A `verifiers.verdict.Outcome` value."""
    correctness: float | None
    """Raw score in [0, 1]; None iff the outcome is a fault."""
    reward: float | None
    """Correctness plus shaping; None iff the outcome is a fault. Without `credits`, which come on top."""
    extracted: str | None
    detail: str
    seconds: float
    method: str = ""
    """How the verifier found the answer; empty after a resume, or if it does not extract."""
    trace: str = ""
    """Traceback of a verifier that raised; empty after a resume."""
    turn_rewards: tuple[float, ...] = ()
    """As the verdict gave them: for each turn, or for none. Empty after a resume; they are in `credits`."""
    spans: tuple[tuple[int, int, float], ...] = ()
    """(first character, end character, reward), likewise."""
    credits: Credits = field(default_factory=list)
    """Rewards inside the trajectory: those of turns, of spans, and of its environment."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """`verifiers.verdict.Verdict.scores`."""
    branches: Mapping[str, "Score"] = field(default_factory=dict)
    """Id -> the score of each branch that has tokens, the trajectory itself among them, where each is judged
    (`agent.verdict`); empty where one verdict is for all. Their credits are in `credits` alone."""

    def branch_rewards(self) -> dict[str, float]:
        """The reward of each branch that was judged by itself."""
        return {name: each.reward for name, each in self.branches.items() if each.reward is not None}


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """One scored trajectory, or a branch of one, for the trainer: numbers only.

    What it has per token are lists, or memoryviews of numbers where they came over a wire."""

    sequence_id: str
    """The trajectory's or the branch's id (`root_id`): the branches of one count as one sequence."""
    prompt_tokens: Sequence[int]
    response_tokens: Sequence[int]
    """[R] what followed the prompt; the last one was sampled."""
    behavior_logprobs: Sequence[float]
    """[T] natural log, of the sampled ones of the R response tokens: all of them, less `observed`."""
    token_versions: Sequence[int]
    """[T] the policy version that sampled each token."""
    are_continued: Sequence[bool]
    """[T] whether the token was sampled over a KV cache of an older version."""
    advantage: float
    """That of each sampled token, or of the first turn where turns have their own."""
    reward: float
    """The outcome's, without what parts of the response earned."""
    observed: list[tuple[int, int]] = field(default_factory=list)
    """(first, end) of each part of the response that was observed: context, which has no loss."""
    turn_advantages: TurnAdvantages = field(default_factory=list)
    """For all T tokens; empty where each has `advantage`."""
    columns: Columns = field(default_factory=dict)
    """Values of the T tokens, or of all positions but the last for some features; none is empty."""
    finish: str = ""
    """`Finish` of the trajectory: stop, or length where it was cut off."""
    outcome: str = ""
    """`verifiers.verdict.Outcome` of the trajectory."""
    source: str = ""
    """`Task.source` of its task."""
    is_masked: bool = False
    """The loss leaves it out as a whole (`batch_advantages.finish_batch`)."""

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        *,
        reward: float,
        advantage: float,
        turn_advantages: TurnAdvantages | None = None,
        finish: Finish | None = None,
        outcome: str = "",
        source: str = "",
        columns: Mapping[str, bytes] | None = None,
    ) -> "ScoredSequence":
        """Without observations at its end, which nothing was sampled after. `columns` join those of its
        segments."""
        segments = trajectory.sampled()
        response, observed = _response(trajectory)
        return cls(
            sequence_id=trajectory.trajectory_id,
            prompt_tokens=list(trajectory.prompt_tokens),
            response_tokens=response,
            behavior_logprobs=_joined(segment.behavior_logprobs for segment in segments),
            token_versions=_joined([segment.version] * len(segment.tokens) for segment in segments),
            are_continued=_joined([s.is_continued_in_place] * len(s.tokens) for s in segments),
            advantage=advantage,
            reward=reward,
            observed=observed,
            turn_advantages=turn_advantages or [],
            columns={**_columns(segments), **(columns or {})},
            finish="" if finish is None else finish.value,
            outcome=outcome,
            source=source,
        )

    def is_correct(self) -> bool:
        return self.outcome == "correct"

    def num_inputs(self) -> int:
        """Positions that predict something or that others look at: all but the last."""
        return len(self.prompt_tokens) + max(0, len(self.response_tokens) - 1)

    def advantage_runs(self) -> TurnAdvantages:
        """The advantages of all T tokens, as runs of equal ones."""
        return self.turn_advantages or [(self.num_sampled(), self.advantage)]

    def num_sampled(self) -> int:
        """T, sampled tokens."""
        return len(self.token_versions)

    def sampled_spans(self) -> list[tuple[int, int]]:
        """(first, end) of each part of the response that was sampled."""
        starts = [0, *(end for _, end in self.observed)]
        ends = [*(first for first, _ in self.observed), len(self.response_tokens)]
        return list(zip(starts, ends, strict=True))

    def sampled_tokens(self) -> Sequence[int]:
        """[T] the response without what was observed."""
        if not self.observed:
            return self.response_tokens
        return _joined(self.response_tokens[first:end] for first, end in self.sampled_spans())


def _response(trajectory: Trajectory) -> tuple[list[int], list[tuple[int, int]]]:
    """All tokens up to the last sampled one, and which of them were observed."""
    tokens: list[int] = []
    observed: list[tuple[int, int]] = []
    num_kept = 0
    for segment in trajectory.segments:
        if isinstance(segment, Observed):
            observed.append((len(tokens), len(tokens) + len(segment.tokens)))
            tokens += segment.tokens
        else:
            tokens += segment.tokens
            num_kept = len(tokens) if segment.tokens else num_kept
    return tokens[:num_kept], [(first, end) for first, end in observed if end <= num_kept and end > first]


def _columns(segments: Sequence[Segment]) -> Columns:
    found: dict[str, bytearray] = {}
    for segment in segments:
        for name, values in segment.columns.items():
            found.setdefault(name, bytearray()).extend(segment.context.get(name, b"") + values)
    return {name: bytes(values) for name, values in found.items() if values}


def _joined(parts: Iterable[Sequence[_T]]) -> list[_T]:
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
    """Time in which the server generated nothing; if not installed, that it took."""
    detail: str = ""
    """Why not, if not installed; else why not by way of the smallest source."""
