"""Statements that the replay queue writes into the journal: one per change of a group or a trajectory.

Does not decide anything and touches no file; `Journal.write` takes what these functions return.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncrl.journal.connection import Statement
from asyncrl.journal.packing import of_segment, pack_logprobs, pack_pairs, pack_scores, pack_tokens
from asyncrl.records import (
    DropReason,
    Finish,
    Observed,
    PolicyVersion,
    RecordedCall,
    Score,
    Segment,
    Task,
    TrainedTokens,
    Trajectory,
    TurnAdvantages,
)
from verifiers.storable import MAX_WORDS_CHARACTERS, storable

LONGEST_ANSWER = 200
"""Characters of an answer that stand for a group."""
MOST_CAUSES = 200
"""Most causes of faults whose traceback is kept."""


def admitted(
    group_id: int,
    task: Task,
    trajectories: Sequence[Trajectory],
    *,
    version: PolicyVersion,
    seconds: float,
) -> list[Statement]:
    """A group is open, its trajectories without tokens."""
    return [
        (
            "INSERT INTO groups VALUES (?, ?, ?, 'open', ?, ?, NULL, NULL)",
            (group_id, storable(task.task_id), storable(task.prompt), version, seconds),
        ),
        *joined(group_id, task, trajectories, first=0),
    ]


def joined(group_id: int, task: Task, trajectories: Sequence[Trajectory], *, first: int) -> list[Statement]:
    """Trajectories without tokens are part of an open group, from its sample `first` on."""
    prompt = pack_tokens(task.prompt_tokens)
    return [
        (
            "INSERT INTO trajectories (trajectory_id, group_id, sample, prompt_tokens) VALUES (?, ?, ?, ?)",
            (trajectory.trajectory_id, group_id, sample, prompt),
        )
        for sample, trajectory in enumerate(trajectories, start=first)
    ]


def streamed(server: str, trajectories: Iterable[Trajectory], *, seconds: float) -> list[Statement]:
    """A server continues the trajectories from where they are."""
    return [
        (
            "INSERT INTO streams VALUES (?, ?, ?, ?)",
            (trajectory.trajectory_id, trajectory.num_response_tokens(), server, seconds),
        )
        for trajectory in trajectories
    ]


def confirmed(trajectory: Trajectory, segment: Segment) -> list[Statement]:
    """`segment` follows what `trajectory` holds."""
    place = trajectory.trajectory_id, trajectory.num_response_tokens()
    return [
        (
            "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)",
            (
                *place,
                segment.version,
                int(segment.is_continued_in_place),
                pack_tokens(segment.tokens),
                pack_logprobs(segment.behavior_logprobs),
            ),
        ),
        *of_segment(place, segment),
    ]


def observed(trajectory: Trajectory, observation: Observed) -> Statement:
    """`observation` follows what `trajectory` holds, whose turn has ended."""
    assert trajectory.turn_finish is not None
    return (
        "INSERT INTO observations VALUES (?, ?, ?, ?, ?, ?)",
        (
            trajectory.trajectory_id,
            trajectory.num_response_tokens(),
            trajectory.num_observations(),
            trajectory.turn_finish.value,
            pack_tokens(observation.tokens),
            storable(observation.notes),
        ),
    )


def opened(trajectory: Trajectory) -> Statement:
    """The context of a trajectory without tokens is its prompt."""
    values = pack_tokens(trajectory.prompt_tokens), trajectory.role, trajectory.trajectory_id
    return "UPDATE trajectories SET prompt_tokens = ?, role = ? WHERE trajectory_id = ?", values


def branched(trajectory: Trajectory, branch: Trajectory) -> Statement:
    """A branch without tokens."""
    return (
        "INSERT INTO trajectories (trajectory_id, group_id, sample, prompt_tokens, branch_of, role) "
        "SELECT ?, group_id, sample, ?, trajectory_id, ? FROM trajectories WHERE trajectory_id = ?",
        (branch.trajectory_id, pack_tokens(branch.prompt_tokens), branch.role, trajectory.trajectory_id),
    )


def called(trajectory_id: str, call: RecordedCall) -> Statement:
    return (
        "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)",
        (trajectory_id, call.ordinal, call.choice, call.digest, call.branch, call.turn),
    )


def cut_off(line: Trajectory, num_tokens: int) -> list[Statement]:
    """Only the first `num_tokens` tokens of its response stay; a branch of none goes."""
    name = line.trajectory_id
    rows: list[Statement] = [
        (f"DELETE FROM {table} WHERE trajectory_id = ? AND position >= ?", (name, num_tokens))
        for table in ("segments", "kept_sets", "routes", "observations")
    ]
    if num_tokens == 0:
        rows.append(("DELETE FROM trajectories WHERE trajectory_id = ? AND branch_of IS NOT NULL", (name,)))
    return rows


def uncalled(trajectory_id: str, call: RecordedCall) -> Statement:
    return (
        "DELETE FROM calls WHERE trajectory_id = ? AND ordinal = ? AND choice = ?",
        (trajectory_id, call.ordinal, call.choice),
    )


def finished(trajectory_id: str, finish: Finish) -> Statement:
    return "UPDATE trajectories SET finish = ? WHERE trajectory_id = ?", (finish.value, trajectory_id)


def failed(trajectory_id: str, cause: str, trace: str) -> Statement:
    """A verifier raised; of each cause the first traceback stays, of MOST_CAUSES causes at most."""
    return (
        "INSERT OR IGNORE INTO fault_traces SELECT ?, ?, ? WHERE (SELECT count(*) FROM fault_traces) < ?",
        (cause, trajectory_id, trace, MOST_CAUSES),
    )


def retried(task_id: str, cause: str, detail: str, trace: str) -> Statement:
    """A verifier failed, and gave a verdict when asked again; past MOST_CAUSES, causes share one row."""
    return (
        "INSERT INTO retried_faults SELECT CASE WHEN ?1 IN (SELECT cause FROM retried_faults) OR "
        "(SELECT count(*) FROM retried_faults) < ?5 THEN ?1 ELSE 'further causes' END, 1, ?2, ?3, ?4 "
        "WHERE true ON CONFLICT (cause) DO UPDATE SET num_faults = num_faults + 1",
        (cause, storable(task_id), storable(detail, limit=MAX_WORDS_CHARACTERS), trace, MOST_CAUSES),
    )


def answered(group_id: int, task_id: str, scores: Sequence[Score], version: PolicyVersion) -> list[Statement]:
    """The sampled trajectories of a group have these verdicts, which came at `version`; nothing where all of
    them are faults."""
    correct = [score.correctness for score in scores if score.correctness is not None]
    if not correct:
        return []
    given = Counter(score.extracted for score in scores if score.extracted is not None)
    answer, num_same = given.most_common(1)[0] if given else (None, 0)
    cut = None if answer is None else storable(answer[:LONGEST_ANSWER])
    mean = sum(correct) / len(correct)
    task = storable(task_id)
    return [
        (
            "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (task, group_id, len(correct), mean, cut, num_same, version),
        ),
        (
            "INSERT INTO tasks VALUES (?, 1, 0, 0.0, ?, ?) ON CONFLICT (task_id) DO UPDATE SET "
            "num_visits = num_visits + 1, num_changes = num_changes + (answer IS NOT excluded.answer), "
            "moved = moved + abs(correct - excluded.correct), "
            "answer = excluded.answer, correct = excluded.correct",
            (task, cut, mean),
        ),
    ]


def graded(trajectory_id: str, score: Score, text: str) -> Statement:
    """The verdict on a trajectory, whose decoded response is `text`."""
    return (
        "UPDATE trajectories SET outcome = ?, correctness = ?, reward = ?, scores = ?, credits = ?, "
        "extracted = ?, detail = ?, verify_seconds = ?, text = ? WHERE trajectory_id = ?",
        (
            score.outcome,
            score.correctness,
            score.reward,
            pack_scores(score.scores),
            pack_pairs(score.credits),
            score.extracted,
            score.detail,
            score.seconds,
            text,
            trajectory_id,
        ),
    )


def batch_columns(version: PolicyVersion, columns: Mapping[str, Any]) -> Statement:
    """Columns of the batch that the trainer of `version` took."""
    return "INSERT OR REPLACE INTO batch_columns VALUES (?, ?)", (version, json.dumps(columns))


def branch_graded(branch_id: str, score: Score, text: str) -> Statement:
    """The verdict on a branch, whose last message is `text`."""
    return (
        "INSERT INTO branch_verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(branch_id, score.outcome, score.correctness, score.reward),
            *(score.extracted, score.detail, score.seconds, text),
        ),
    )


def made_ready(
    group_id: int,
    advantages: Mapping[str, float],
    turn_advantages: Mapping[str, TurnAdvantages],
    branch_advantages: Mapping[str, float],
) -> list[Statement]:
    """Advantages by trajectory id; trajectories without one have left the group. A branch gets its
    trajectory's reward and advantage where it has none of its own."""
    return [
        ("UPDATE groups SET state = 'ready' WHERE group_id = ?", (group_id,)),
        *(
            (
                "UPDATE trajectories SET advantage = ?, turn_advantages = ? WHERE trajectory_id = ?",
                (advantage, pack_pairs(turn_advantages.get(trajectory_id, [])), trajectory_id),
            )
            for trajectory_id, advantage in advantages.items()
        ),
        (
            "UPDATE trajectories SET (advantage, reward) = (SELECT t.advantage, coalesce((SELECT v.reward "
            "FROM branch_verdicts v WHERE v.trajectory_id = trajectories.trajectory_id), t.reward) "
            "FROM trajectories t WHERE t.trajectory_id = trajectories.branch_of) "
            "WHERE group_id = ? AND branch_of IS NOT NULL",
            (group_id,),
        ),
        *(
            ("UPDATE trajectories SET advantage = ? WHERE trajectory_id = ?", (advantage, branch_id))
            for branch_id, advantage in branch_advantages.items()
        ),
    ]


def dropped(group_id: int, reason: DropReason) -> Statement:
    return "UPDATE groups SET state = 'dropped', reason = ? WHERE group_id = ?", (reason.value, group_id)


def taken(group_ids: Iterable[int], version: PolicyVersion) -> list[Statement]:
    """The trainer of `version` took the groups, for the first time."""
    return [
        ("UPDATE groups SET state = 'taken', taken_version = ? WHERE group_id = ?", (version, group_id))
        for group_id in group_ids
    ]


def repeated(group_ids: Iterable[int], version: PolicyVersion) -> list[Statement]:
    """The trainer of `version` took the groups once more."""
    return [("INSERT INTO repetitions VALUES (?, ?)", (version, group_id)) for group_id in group_ids]


def trained_tokens(found: Iterable[TrainedTokens], version: PolicyVersion) -> list[Statement]:
    """Records of each token by the trainer of `version`; a step that is done again replaces its records."""
    return [
        (
            "INSERT OR REPLACE INTO trained_tokens VALUES (?, ?, ?, ?, ?)",
            (version, each.trajectory_id, each.log_ratios, each.entropies, each.advantages),
        )
        for each in found
    ]


def committed(version: PolicyVersion, checkpoint_folder: str, *, seconds: float) -> list[Statement]:
    """A durable checkpoint of `version`: the batches of all versions below it are trained."""
    return [
        ("UPDATE groups SET state = 'trained' WHERE state = 'taken' AND taken_version < ?", (version,)),
        ("INSERT OR REPLACE INTO commits VALUES (?, ?, ?)", (version, checkpoint_folder, seconds)),
    ]
