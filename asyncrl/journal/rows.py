"""Rows that `JournalReader` returns for people: plain ones, with what answered each turn."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from asyncrl.journal.packing import unpack_tokens
from verifiers.storable import storable


class _Group(TypedDict):
    """Columns of `groups`, with the step for the taken version."""

    group_id: int
    task_id: str
    prompt: str
    state: str
    admitted_version: int
    admitted_seconds: float
    step: int | None
    """Step that trained it first."""
    reason: str | None
    """Why it was dropped."""


class GroupSummary(_Group):
    """A group with its trajectories summed up. Numbers are None where no trajectory has them."""

    num_trajectories: int
    reward: float | None
    """Mean."""
    num_correct: int | None
    num_wrong: int | None
    num_no_answer: int | None
    num_fault: int | None
    tokens: int | None
    """Sampled ones."""
    observed_tokens: int | None
    """Tokens of answers to turns, which nothing trains; None without any, and once compacted."""
    version_min: int | None
    version_max: int | None


class SegmentRow(TypedDict):
    position: int
    """Position of its first token in the response."""
    version: int
    is_continued: bool
    """Sampled over a KV cache of an older version."""
    tokens: list[int]
    logprobs: list[float]


class CallRow(TypedDict):
    """A call of a tool, with its result."""

    name: str
    """Empty where it could not be read."""
    arguments: dict[str, Any]
    error: str
    """Why it could not be made; empty for a call that was."""
    output: str
    is_error: bool
    """The model reads an error."""


class MessageRow(TypedDict):
    role: str
    text: str


class ObservationRow(TypedDict):
    """The answer to a turn. Fields of notes that were too long to be stored are empty."""

    position: int
    """Position of its first token in the response."""
    turn: int
    """The turn that it answers, from 0."""
    turn_finish: str
    tokens: list[int]
    seconds: float | None
    reward: float | None
    calls: list[CallRow]
    messages: list[MessageRow]
    """Without those that are results of calls. With a request for a summary at its end, or one message of the
    role `summary` where the turn was a summary (turns.summarize)."""


class BranchVerdictRow(TypedDict):
    """The verdict on a branch, where each has its own (agent.verdict, agent.roles)."""

    outcome: str
    correctness: float | None
    reward: float | None
    extracted: str | None
    detail: str | None
    verify_seconds: float
    text: str | None
    """The last message, which was judged."""


class TrajectoryColumns(TypedDict):
    """Columns of `trajectories`, without what was generated."""

    trajectory_id: str
    group_id: int
    sample: int
    finish: str | None
    outcome: str | None
    correctness: float | None
    reward: float | None
    """The outcome's, without credits."""
    scores: dict[str, float]
    """Named ones of its verdict."""
    credits: list[tuple[int, float]]
    """(sampled token, reward) of each reward inside it; those in branches are the branches'."""
    advantage: float | None
    turn_advantages: list[tuple[int, float]]
    """(sampled tokens, advantage) of each turn, where they differ."""
    extracted: str | None
    detail: str | None
    verify_seconds: float | None
    branch_of: str | None
    """The trajectory that it is a branch of."""
    role: str
    """The agent's that speaks (agent.roles); empty without."""
    branch_verdict: BranchVerdictRow | None
    """The verdict on this branch alone, or on the trajectory's first one; None where one is for all."""
    compacted: list[list[int]] | None
    """[version, tokens, is_continued] of each former segment; None while the tokens themselves are there."""


class TrainedRow(TypedDict):
    """A step's record of each sampled token of a response."""

    step: int
    log_ratios: list[float]
    """Proximal less behavior log-prob; NaN where the latter is not finite."""
    entropies: list[float]
    """In nats."""
    advantages: list[float] | None
    """None where all are the trajectory's."""


class TrajectoryRow(TrajectoryColumns):
    prompt_tokens: list[int]
    trained: TrainedRow | None
    """Record of the last step that trained it, where view.groups_per_step kept it."""
    teacher_logprobs: list[float]
    """The teacher's, of each sampled token; empty where none scored it, and once compacted."""
    text: str | None
    segments: list[SegmentRow]
    """Sampled tokens."""
    observations: list[ObservationRow]
    """In the order of turns; empty once compacted."""


class GroupColumns(_Group):
    repeated_steps: list[int]
    """Steps that trained it again."""


class GroupRow(GroupColumns):
    trajectories: list[TrajectoryRow]


class StreamRow(TypedDict):
    position: int
    """The response token from which the server continued."""
    server: str
    started_seconds: float


class FaultTrace(TypedDict):
    """Traceback of the first fault of a cause."""

    trajectory_id: str
    trace: str


class RetriedFault(TypedDict):
    """A cause of faults whose retry gave a verdict."""

    cause: str
    num_faults: int
    task_id: str
    """This and the next two: of the first one."""
    detail: str
    trace: str
    """Empty where the verifier did not raise."""


class CommitRow(TypedDict):
    version: int
    checkpoint_folder: str
    committed_seconds: float


def read_observations(db: sqlite3.Connection, trajectory_id: str) -> list[ObservationRow]:
    """In the order of turns."""
    rows = db.execute(
        "SELECT position, turn, turn_finish, tokens, notes FROM observations WHERE trajectory_id = ? "
        "ORDER BY position",
        (trajectory_id,),
    )
    return [_row(*row) for row in rows]


def observed_texts(notes: str) -> Iterable[str]:
    """Texts of an observation that a search looks through: arguments, results and messages."""
    found = _read(notes)
    for call in _calls(found):
        yield from map(as_text, call["arguments"].values())
        yield call["error"]
    for message in _messages(found):
        yield message["text"]


def as_text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _row(position: int, turn: int, turn_finish: str, tokens: bytes, notes: str) -> ObservationRow:
    found = _read(notes)
    calls = _calls(found)
    return ObservationRow(
        position=position,
        turn=turn,
        turn_finish=turn_finish,
        tokens=unpack_tokens(tokens),
        seconds=found.get("seconds"),
        reward=found.get("reward"),
        calls=calls,
        # Those of calls are their results.
        messages=[*([] if calls else _messages(found)), *_of_summary(found)],
    )


def _of_summary(found: Mapping[str, Any]) -> list[MessageRow]:
    if "summary_request" in found:
        return [MessageRow(role="user", text=as_text(found["summary_request"]))]
    if "kept_turns" in found:
        kept = f"prompt, this summary and the last turns ({found['kept_turns']})"
        return [MessageRow(role="summary", text=f"The context is cut here: the next turn reads {kept}.")]
    return []


def _read(notes: str) -> Mapping[str, Any]:
    """Nothing where the notes were too long to be stored whole."""
    try:
        found = json.loads(notes)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _calls(found: Mapping[str, Any]) -> list[CallRow]:
    calls = found.get("calls") or []
    results = _messages(found)
    errors = found.get("are_errors") or [False] * len(calls)
    return [
        CallRow(
            name=storable(call["name"]),
            arguments=call["arguments"],
            error=storable(call["error"]),
            output=result["text"],
            is_error=bool(call["error"]) or is_error,
        )
        for call, result, is_error in zip(calls, results, errors, strict=False)
    ]


def _messages(found: Mapping[str, Any]) -> list[MessageRow]:
    return [
        MessageRow(role=as_text(message.get("role", "")), text=as_text(message.get("content", "")))
        for message in found.get("messages") or []
    ]
